"""Notifications are there once, however often they are loaded, and with them how far their query has come."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.store.mailboxes import mailbox_loading
from tidings.store.mailboxes.notifications import BATCHES_KEPT, LOG, Notifications, NotificationsError

GROUPS = ("groupings", "members", "pages", "highest", "marks")


def matches(rows: dict[int, list[Any]], source: str | None = None) -> pa.Table:
    columns: dict[str, Any] = {"position": pa.array(list(rows), pa.int64()), "subscriptions": list(rows.values())}
    return pa.table(columns if source is None else columns | {"source": [source] * len(rows)})


def load(store: Notifications, rows: dict[int, list[Any]], batch: int, version: int = 1, query: str = "q") -> int:
    reached = {LOG: max(rows)} if rows else {}
    return store.load([matches(rows)] if rows else [], query=query, batch=batch, version=version, reached=reached)


def test_a_load_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        assert load(store, {7: ["a", "b"], 9: ["a"]}, batch=0) == 3
        before = store.batches("q")
        assert load(store, {7: ["a", "b"], 9: ["a"]}, batch=0) == 0
        assert store.batches("q") == before
        assert sorted(store.pairs()) == [(7, "a"), (7, "b"), (9, "a")]
        assert store.positions_of("a") == [7, 9]
        assert store.positions_of("a", after=7) == [9]
        assert store.positions_of("a", limit=1) == [7]
        assert store.reached("q") == {LOG: 9}
        assert store.last_batch("q") == 0


def test_what_was_loaded_is_found_after_reopening(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        load(store, {1: [2**62, -5]}, batch=3, version=8)
    with Notifications(tmp_path / "store") as store:
        assert sorted(store.pairs()) == [(1, -5), (1, 2**62)]
        assert [(batch.batch, batch.version, batch.notifications) for batch in store.batches("q")] == [(3, 8, 2)]


def test_texts_and_numbers_are_different_subscriptions_and_so_are_sources(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        store.load([matches({1: ["7"]})], query="q", batch=0, version=1, reached={})
        store.load([matches({1: [7]})], query="q", batch=1, version=1, reached={})
        for batch, source in ((2, "topic/0"), (3, "topic/1")):
            store.load([matches({1: [7]}, source)], query="q", batch=batch, version=1, reached={source: 1})
        assert len(store) == 4
        assert store.positions_of(7) == store.positions_of(7, source="topic/1") == [1]
        assert store.reached("q") == {"topic/0": 1, "topic/1": 1}


def test_a_batch_loaded_again_with_another_version_is_refused(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        load(store, {1: ["a"]}, batch=0, version=1)
        with pytest.raises(NotificationsError, match=r"batch 0 was loaded with version 1 .* comes again with 2"):
            load(store, {1: ["a"], 2: ["b"]}, batch=0, version=2)
        assert list(store.pairs()) == [(1, "a")]
        assert store.reached("q") == {LOG: 1}


def test_a_load_that_fails_on_its_way_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Any:
        yield matches({1: ["a"]})
        raise OSError("a staged file is gone")

    with Notifications(tmp_path / "store") as store:
        with pytest.raises(OSError, match="gone"):
            store.load(broken(), query="q", batch=0, version=1, reached={LOG: 1})
        assert len(store) == 0
        assert store.last_batch("q") is None
        assert load(store, {1: ["a"]}, batch=0) == 1


def test_the_list_of_batches_does_not_grow_without_end(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        for batch in (0, 1, BATCHES_KEPT, BATCHES_KEPT + 1):
            load(store, {batch: ["a"]}, batch=batch)
        assert [batch.batch for batch in store.batches("q")] == [BATCHES_KEPT, BATCHES_KEPT + 1]
        assert len(store) == 4


@pytest.mark.parametrize("content", [b"a text, and no database" * 100, None])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "store"
    if content is None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
    else:
        path.write_bytes(content)
    with pytest.raises(NotificationsError, match=r"notifications: .*store"):
        Notifications(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotificationsError, match=r"cannot open .*nowhere/store"):
        Notifications(tmp_path / "nowhere" / "store")


@given(st.lists(st.dictionaries(st.integers(0, 20), st.lists(st.integers(0, 5), unique=True)), max_size=6))
def test_the_store_is_the_set_of_what_was_loaded(batches: list[dict[int, list[int]]]) -> None:
    with Notifications(":memory:") as store:
        for number, rows in enumerate(batches):
            load(store, rows, batch=number)
        assert sorted(store.pairs()) == sorted(
            {(at, id_) for rows in batches for at, ids in rows.items() for id_ in ids}
        )


# Mailboxes.


def overflowed(store: Notifications, subscription: int) -> list[int]:
    return [row.position for row in store.overflowed(subscription)]


def test_notifications_overflow_a_full_mailbox_and_are_kept_once(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store", max_waiting=3) as store:
        assert load(store, {3: [7, 8], 1: [7], 2: [7], 4: [7]}, batch=0) == 4
        assert (store.positions_of(7), overflowed(store, 7), store.positions_of(8)) == ([1, 2, 3], [4], [3])
        assert load(store, {3: [7, 8], 1: [7], 2: [7], 4: [7]}, batch=0) == 0
        assert store.prune({7: 2}) == 2
        assert load(store, {3: [7, 8], 1: [7], 2: [7], 4: [7]}, batch=0, query="another") == 0
        assert (store.positions_of(7), overflowed(store, 7)) == ([3], [4])
        assert load(store, {5: [7], 6: [7], 9: [7]}, batch=1) == 2
        assert (store.positions_of(7), overflowed(store, 7)) == ([3, 5, 6], [4, 9])
        assert (store.waiting(7), store.waiting(8), store.waiting(9)) == (3, 1, 0)
        assert [row.position for row in store.overflowed(7, after=4, limit=1)] == [9]
        assert store.forget_overflowed({7: 8, 8: 9}) == 1
        assert overflowed(store, 7) == [9]


def test_the_bound_is_stored_in_the_file(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        assert store.max_waiting is None
        load(store, {1: [7], 2: [7]}, batch=0)
        with pytest.raises(NotificationsError, match="has no mailboxes to prune; open it with max_waiting"):
            store.prune({7: 1})
    with Notifications(tmp_path / "store", max_waiting=2) as store:
        assert store.waiting(7) == 2
        assert store.woken(0)[1] == [7]
    with Notifications(tmp_path / "store") as store:
        assert store.max_waiting == 2
        assert load(store, {3: [7]}, batch=1) == 0
        assert overflowed(store, 7) == [3]


def test_what_was_acknowledged_does_not_come_back(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store", max_waiting=10) as store:
        load(store, {1: [7, 8], 2: [7, 8], 3: [7]}, batch=0)
        assert store.prune({7: 2, 8: 1, 9: 5}) == 3
        assert store.prune({7: 1}) == 0
        assert load(store, {1: [7, 8], 2: [7, 8], 3: [7], 4: [9], 6: [9]}, batch=0, query="from the start") == 1
        assert sorted(store.pairs()) == [(2, 8), (3, 7), (6, 9)]
        assert [store.waiting(each) for each in (7, 8, 9)] == [1, 1, 1]
        store.forget([7, 9])
        assert sorted(store.pairs()) == [(2, 8)]


def test_a_load_wakes_those_that_got_something(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store", max_waiting=10) as store:
        assert store.woken(0) == (0, [])
        load(store, {1: [7, -8]}, batch=0)
        load(store, {}, batch=1)
        first, woken = store.woken(0)
        assert woken == [-8, 7]
        load(store, {1: [7], 2: [9]}, batch=2)
        second, woken = store.woken(first)
        assert woken == [9], "7 had that already"
        assert store.woken(second) == (second, [])
        assert store.woken(0) == (second, [-8, 7, 9])
        assert store.woken(second + 100) == (second, [-8, 7, 9]), "of another file, perhaps: all that wait"
    with Notifications(tmp_path / "store") as store:
        assert store.woken(second) == (second, [])
        load(store, {3: [7]}, batch=3)
        assert store.woken(second)[1] == [7]


def test_after_too_many_loads_all_waiting_subscriptions_are_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_loading, "LOADS_KEPT", 8)
    with Notifications(tmp_path / "store", max_waiting=10) as store:
        load(store, {1: [7], 2: [8]}, batch=0)
        last, _ = store.woken(0)
        store.prune({7: 1})
        for batch in range(1, 10):
            load(store, {100 + batch: [9]}, batch=batch)
        assert store.woken(last)[1] == [8, 9]
        last, _ = store.woken(last)
        monkeypatch.setattr(mailbox_loading, "MAX_WOKEN", 2)
        load(store, {1000: [20, 21, 22]}, batch=1000)
        assert store.woken(last)[1] == [8, 9, 20, 21, 22]


def test_a_stream_does_not_resume_after_replays_of_the_past(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store") as store:
        load(store, {1: [7]}, batch=0, query="replay-7")
        load(store, {2: [7]}, batch=0, query="q")
        assert store.queries() == ["q"]
        assert store.reached("replay-7") == {LOG: 1}


@given(
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 2), unique=True), max_size=8),
            st.tuples(st.integers(0, 2), st.integers(0, 12)),
        ),
        max_size=10,
    ),
)
def test_mailboxes_are_bounded_and_lose_nothing(room: int, steps: list[Any]) -> None:
    waiting: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    over: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    pruned = {0: -1, 1: -1, 2: -1}
    with Notifications(":memory:", max_waiting=room) as store:
        for number, step in enumerate(steps):
            seen, _ = store.woken(0)
            if isinstance(step, tuple):
                subscription, position = step
                gone = {each for each in waiting[subscription] if each <= position}
                assert store.prune({subscription: position}) == len(gone)
                waiting[subscription] -= gone
                pruned[subscription] = max(position, pruned[subscription])
                continue
            got = set()
            for position, subscription in sorted((at, id_) for at, ids in step.items() for id_ in ids):
                if position <= pruned[subscription] or position in waiting[subscription] | over[subscription]:
                    continue
                (waiting if len(waiting[subscription]) < room else over)[subscription].add(position)
                got.add(subscription)
            # As the tasks of one batch give them: in several tables.
            tables = [matches({at: ids}) for at, ids in sorted(step.items())]
            store.load(tables, query="q", batch=number, version=1, reached={})
            assert store.woken(seen)[1] == sorted(got)
            for subscription in waiting:
                assert store.positions_of(subscription) == sorted(waiting[subscription])
                assert overflowed(store, subscription) == sorted(over[subscription])
                assert store.waiting(subscription) == len(waiting[subscription]) <= room


def test_a_load_writes_each_page_of_the_file_about_once(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    with Notifications(tmp_path / "store", max_waiting=1_000) as store:
        store._ask("PRAGMA wal_autocheckpoint = 0")
        for batch in range(2):
            ids = [draw.choice(4_000, 200, replace=False).tolist() for _ in range(1_000)]
            table = pa.table({"position": np.arange(1_000) + 1_000 * batch, "subscriptions": ids})
            store._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            store.load([table], query="q", batch=batch, version=1, reached={})
        written, size = (tmp_path / "store-wal").stat().st_size, (tmp_path / "store").stat().st_size
    assert written < 4 * size
