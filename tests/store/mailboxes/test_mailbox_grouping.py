"""A store with groups answers as one without: pages only change what is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.store.mailboxes import mailbox_loading
from tidings.store.mailboxes.mailbox_grouping import decode, encode
from tidings.store.mailboxes.notifications import LOG, Notifications

SUBSCRIPTIONS = range(6)


def matches(rows: dict[int, list[Any]], source: str | None = None) -> pa.Table:
    columns: dict[str, Any] = {"position": pa.array(list(rows), pa.int64()), "subscriptions": list(rows.values())}
    return pa.table(columns if source is None else columns | {"source": [source] * len(rows)})


@pytest.fixture
def pages_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages also of few notifications, which rows would hold in fewer bytes."""
    monkeypatch.setattr(mailbox_loading, "ROW_BYTES", 1 << 20)


def pages(store: Notifications) -> int:
    return int(store._ask("SELECT count(*) FROM pages")[0][0])


def answers(store: Notifications, subscriptions: Any = SUBSCRIPTIONS, sources: tuple[str, ...] = (LOG, "t/0")) -> Any:
    return {
        "pairs": sorted(store.pairs(), key=repr),
        "len": len(store),
        "of": {
            id_: (
                [store.positions_of(id_, source=source) for source in sources],
                [store.positions_of(id_, after=after, before=after + 6, limit=2) for after in (-1, 4, 9)],
                store.waiting(id_),
                [found.position for found in store.overflowed(id_)],
            )
            for id_ in subscriptions
        },
    }


@given(st.lists(st.tuples(st.integers(0, 2**40), st.sets(st.integers(0, 65535), min_size=1)), min_size=1))
def test_a_page_reads_as_it_was_written(events: list[tuple[int, set[int]]]) -> None:
    rows = sorted({(position, member) for position, members in events for member in members})
    positions, members = np.array(rows, np.int64).T
    read = decode(encode(positions, members))
    assert (read[0].tolist(), read[1].tolist()) == (positions.tolist(), members.tolist())


STEP = st.one_of(
    st.dictionaries(st.integers(0, 14), st.lists(st.sampled_from(SUBSCRIPTIONS), unique=True, min_size=1), max_size=8),
    st.tuples(st.just("prune"), st.sampled_from(SUBSCRIPTIONS), st.integers(0, 14)),
    st.tuples(st.just("forget"), st.sampled_from(SUBSCRIPTIONS)),
    st.tuples(st.just("group"), st.permutations(SUBSCRIPTIONS), st.integers(0, 5)),
    st.tuples(st.just("kafka"), st.integers(0, 14), st.lists(st.sampled_from(SUBSCRIPTIONS), unique=True, min_size=1)),
    st.just("later"),
)


@pytest.mark.usefixtures("pages_always")
@given(st.sampled_from([None, 1, 2, 4, 1000]), st.lists(STEP, max_size=14))
@settings(max_examples=150, deadline=None)
def test_groups_change_no_result(room: int | None, steps: list[Any]) -> None:
    base, forgotten = 0, set[int]()
    with Notifications(":memory:", max_waiting=room) as plain, Notifications(":memory:", max_waiting=room) as store:
        store.group([[0, 1, 2], [3, 4]])
        for number, step in enumerate(steps):
            seen = plain.woken(0)[0], store.woken(0)[0]
            match step:
                case "later":
                    base += 15
                case ("prune", id_, position):
                    if room is not None:
                        acknowledged = {id_: base + position}
                        assert store.prune(acknowledged) == plain.prune(acknowledged)
                case ("forget", id_):
                    for one in (plain, store):
                        one.forget([id_])
                    forgotten.add(id_)
                case ("group", order, size):
                    chosen = [id_ for id_ in order if id_ not in forgotten][:size]
                    store.group([chosen] if chosen else [])
                case ("kafka", position, ids):
                    ids = [id_ for id_ in ids if id_ not in forgotten]
                    if ids:
                        table = matches({base + position: ids}, "t/0")
                        for one in (plain, store):
                            one.load([table], query="k", batch=number, version=1, reached={})
                case dict():
                    rows = {base + at: [id_ for id_ in ids if id_ not in forgotten] for at, ids in sorted(step.items())}
                    tables = [matches({at: ids}) for at, ids in rows.items() if ids]
                    added = [one.load(tables, query="q", batch=number, version=1, reached={}) for one in (plain, store)]
                    assert added[0] == added[1]
            assert plain.woken(seen[0])[1] == store.woken(seen[1])[1]
            assert answers(store) == answers(plain)


@pytest.mark.usefixtures("pages_always")
def test_ids_that_are_texts_have_pages_too(tmp_path: Path) -> None:
    with Notifications(tmp_path / "store", max_waiting=10) as store:
        store.group([["a", "b"]])
        store.load([matches({1: ["a", "b", "c"], 2: ["b"]})], query="q", batch=0, version=1, reached={LOG: 2})
        assert pages(store) == 1
        assert (store.positions_of("a"), store.positions_of("b"), store.positions_of("c")) == ([1], [1, 2], [1])
    with Notifications(tmp_path / "store") as store:
        assert sorted(store.pairs()) == [(1, "a"), (1, "b"), (1, "c"), (2, "b")]


@pytest.mark.usefixtures("pages_always")
def test_a_subscription_that_left_its_group_gets_rows_and_keeps_its_pages() -> None:
    with Notifications(":memory:", max_waiting=4) as store:
        store.group([[1, 2]])
        first = matches({1: [1, 2], 2: [1, 2], 3: [1]})
        store.load([first], query="q", batch=0, version=1, reached={LOG: 3})
        store.group([[3, 4]])
        store.load([matches({4: [1, 3, 4], 5: [1, 3]})], query="q", batch=1, version=1, reached={LOG: 5})
        assert store._ask("SELECT subscription, position FROM notifications") == [(1, 4)]
        assert store.positions_of(1) == [1, 2, 3, 4]  # in a page of the former group, and in a row
        assert [one.position for one in store.overflowed(1)] == [5]  # the bound counts both
        store.group([])
        assert store.load([first], query="q", batch=0, version=1, reached={LOG: 3}) == 0  # the batch comes again
        store.prune(dict.fromkeys((1, 2, 3, 4), 5))
        assert pages(store) == 0
        store.group([])
        assert store._ask("SELECT count(*) FROM members") == [(0,)]  # nothing is left of groups that are not needed


@pytest.mark.usefixtures("pages_always")
def test_a_batch_that_comes_again_is_in_its_pages_already() -> None:
    with Notifications(":memory:", max_waiting=10) as store:
        store.group([[1, 2]])
        for _ in range(2):
            store.load([matches({5: [1, 2], 6: [2]})], query="q", batch=0, version=1, reached={LOG: 6})
        # A query that began again reaches over the same positions in another batch.
        assert store.load([matches({6: [1, 2], 7: [1]})], query="r", batch=0, version=1, reached={LOG: 7}) == 2
        assert sorted(store.pairs()) == [(5, 1), (5, 2), (6, 1), (6, 2), (7, 1)]


@pytest.mark.usefixtures("pages_always")
def test_a_page_shrinks_as_it_is_acknowledged_and_goes_with_its_last() -> None:
    with Notifications(":memory:", max_waiting=1000) as store:
        store.group([list(range(100))])
        store.load([matches({at: list(range(100)) for at in range(50)})], query="q", batch=0, version=1, reached={})
        size = "SELECT sum(notifications), count(*) FROM pages"
        assert store._ask(size) == [(5000, 1)]
        assert store.prune(dict.fromkeys(range(30), 49)) == 1500
        assert store._ask(size) == [(5000, 1)]
        assert store.prune(dict.fromkeys(range(30, 70), 49)) == 2000
        assert store._ask(size) == [(1500, 1)]
        assert store.prune(dict.fromkeys(range(70, 100), 49)) == 1500
        assert (store._ask(size), len(store)) == ([(None, 0)], 0)


def test_few_notifications_are_rows_and_many_a_page() -> None:
    with Notifications(":memory:", max_waiting=1000) as store:
        store.group([list(range(200)), list(range(200, 400))])
        store.load([matches({1: [7], 2: [8, 9]})], query="q", batch=0, version=1, reached={})
        assert (pages(store), store.positions_of(8)) == (0, [2])
        store.load([matches({3: list(range(150)), 4: [210]})], query="q", batch=1, version=1, reached={})
        assert pages(store) == 1
        assert (store.positions_of(8), store.positions_of(210)) == ([2, 3], [4])


def alike(random: Random, count: int) -> Iterator[tuple[int, list[int]]]:
    """Events that are each for many of one hundred of a thousand subscriptions."""
    for position in range(count):
        first = 100 * random.randrange(10)
        yield position, [id_ for id_ in range(first, first + 100) if random.random() < 0.4]


def test_groups_of_what_is_alike_take_a_fraction_of_the_bytes(tmp_path: Path) -> None:
    rows = dict(alike(Random(3), 4000))
    sizes = {}
    for name, groups in {
        "rows": [],
        "alike": [list(range(first, first + 100)) for first in range(0, 1000, 100)],
        "mixed": [list(range(first, 1000, 10)) for first in range(10)],
    }.items():
        with Notifications(tmp_path / name, max_waiting=10_000) as store:
            store.group(groups)
            store.load([matches(rows)], query="q", batch=0, version=1, reached={LOG: 3999})
            assert sorted(store.pairs()) == sorted((at, id_) for at, ids in rows.items() for id_ in ids)
        with sqlite3.connect(tmp_path / name) as file:
            file.execute("VACUUM")
            sizes[name] = file.execute("PRAGMA page_count").fetchone()[0]
        file.close()
    assert 5 * sizes["alike"] < sizes["rows"]
    assert sizes["alike"] < sizes["mixed"] < sizes["rows"]
