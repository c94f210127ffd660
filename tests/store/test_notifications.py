"""Notifications are there once, however often they are loaded, and with them how far their query has come."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.store.notifications import BATCHES_KEPT, LOG, Notifications, NotificationsError


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


def test_what_was_loaded_is_there_for_who_opens_it_next(tmp_path: Path) -> None:
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


def test_a_batch_that_comes_again_with_another_version_is_refused_and_changes_nothing(tmp_path: Path) -> None:
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
