"""What was acknowledged stays so, what failed is tried again, and what was given up can be had again."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.store.mailboxes.deliveries import Attempt, Deliveries, DeliveriesBusyError, DeliveriesError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deliveries.sqlite"


def dead(deliveries: Deliveries, subscription: int) -> list[tuple[int, str, int]]:
    return [(row.position, row.reason, row.attempts) for row in deliveries.dead_letters(subscription)]


def test_a_cursor_never_goes_back(path: Path) -> None:
    with Deliveries(path) as deliveries:
        assert deliveries.cursor(7) == -1
        assert deliveries.acknowledge(7, 40) == 40
        assert deliveries.acknowledge(7, 12) == 40
        assert deliveries.acknowledge_many({7: 41, 8: 3, 9: -1}) == {7: 41, 8: 3, 9: -1}
        assert deliveries.cursors() == {7: 41, 8: 3}


def test_what_was_written_survives_a_restart(path: Path) -> None:
    with Deliveries(path) as deliveries:
        deliveries.acknowledge(7, 40)
        deliveries.failed(7, 41, "503", next_try=1_000)
        assert deliveries.failed(7, 41, "refused", next_try=2_000) == 2
        deliveries.dead(7, 39, "410 Gone", 5)
        deliveries.dead(7, 38, "410 Gone", 5)
        deliveries.redrive(7, [38])
    with Deliveries(path) as deliveries:
        assert deliveries.cursor(7) == 40
        (attempt,) = deliveries.attempts(7)
        assert attempt == Attempt(7, 41, 2, "refused", attempt.first_try, 2_000)
        assert dead(deliveries, 7) == [(39, "410 Gone", 5)]
        assert deliveries.redriven(7) == [38]


def test_what_failed_is_due_at_its_time(path: Path) -> None:
    with Deliveries(path) as deliveries:
        assert deliveries.next_due(0) is None
        for subscription, position, next_try in ((1, 5, 300), (2, 5, 100), (1, 6, 200)):
            deliveries.failed(subscription, position, "503", next_try)
        assert (deliveries.next_due(0), deliveries.next_due(100)) == (100, 200)
        assert (deliveries.due(99), deliveries.due(100), deliveries.due(200)) == ([], [2], [1, 2])
        deliveries.delivered(2, 5)
        deliveries.acknowledge(1, 5)
        assert [row.position for row in deliveries.attempts(1)] == [6]
        assert deliveries.next_due(0) == 200
        deliveries.try_now(1)
        assert deliveries.due(0) == [1]


def test_many_are_given_up_at_once_and_the_cursor_passes_them(path: Path) -> None:
    with Deliveries(path) as deliveries:
        deliveries.failed(7, 3, "503", 0)
        deliveries.dead_many(7, dict.fromkeys([3, 4, 8], "nobody came"), cursors={7: 8, -2: 9})
        assert [(one.position, one.reason) for one in deliveries.dead_letters(7)] == [
            (3, "nobody came"),
            (4, "nobody came"),
            (8, "nobody came"),
        ]
        assert (deliveries.cursor(7), deliveries.cursor(-2), deliveries.attempts(7)) == (8, 9, [])


def test_a_dead_letter_is_not_tried_again_and_may_move_the_cursor(path: Path) -> None:
    with Deliveries(path) as deliveries:
        for _ in range(3):
            deliveries.failed(7, 41, "503", next_try=1)
        deliveries.dead(7, 41, "too often")
        assert dead(deliveries, 7) == [(41, "too often", 3)]
        assert (deliveries.attempts(7), deliveries.cursor(7)) == ([], -1)
        deliveries.dead(7, 42, "410 Gone", 1, acknowledge=True)
        assert deliveries.cursor(7) == 42
        deliveries.dead(8, 1, "x", 1)
        assert deliveries.dead_letter_counts() == {7: 2, 8: 1}
        assert [row.position for row in deliveries.dead_letters(7, after=41)] == [42]
        assert [row.position for row in deliveries.dead_letters(7, limit=1)] == [41]


def test_what_is_redriven_stays_so_until_it_is_delivered_or_dead_again(path: Path) -> None:
    with Deliveries(path) as deliveries:
        for position in (1, 2, 3):
            deliveries.dead(7, position, "503", 9, acknowledge=True)
        assert deliveries.redrive(7, [2, 3, 99]) == [2, 3]
        assert deliveries.redrive(7) == [1]
        assert deliveries.redrive(7) == []
        assert (deliveries.redriven(7), deliveries.with_redriven(), dead(deliveries, 7)) == ([1, 2, 3], [7], [])
        assert deliveries.redriven(7, after=1, limit=1) == [2]
        deliveries.failed(7, 1, "503", next_try=1)
        deliveries.acknowledge(7, 50)
        assert [row.position for row in deliveries.attempts(7)] == [1], "what others acknowledge is not this"
        deliveries.delivered(7, 1)
        deliveries.dead(7, 2, "503 again")
        assert (deliveries.redriven(7), deliveries.attempts(7)) == ([3], [])
        assert dead(deliveries, 7) == [(2, "503 again", 0)]


def test_a_forgotten_subscription_starts_from_the_beginning(path: Path) -> None:
    with Deliveries(path) as deliveries:
        for subscription in (7, 8):
            deliveries.acknowledge(subscription, 40)
            deliveries.failed(subscription, 41, "503", next_try=1)
            deliveries.dead(subscription, 39, "503", 1)
            deliveries.dead(subscription, 38, "503", 1)
            deliveries.redrive(subscription, [38])
        deliveries.forget(7)
        assert (deliveries.cursor(7), deliveries.attempts(7), dead(deliveries, 7), deliveries.redriven(7)) == (
            -1,
            [],
            [],
            [],
        )
        assert (deliveries.cursor(8), len(deliveries.attempts(8)), len(dead(deliveries, 8))) == (40, 1, 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 9), st.booleans()), max_size=30))
def test_changed_cursors_are_all_found_by_following_them(changes: list[tuple[int, int, bool]]) -> None:
    with Deliveries(":memory:") as deliveries:
        known: dict[int, int] = {}
        expected: dict[int, int] = {}
        seen = 0
        for subscription, position, look in changes:
            if position < 0:
                deliveries.forget(subscription)
                expected.pop(subscription, None)
                known.pop(subscription, None)
            else:
                deliveries.acknowledge(subscription, position)
                expected[subscription] = max(position, expected.get(subscription, -1))
            if look:
                seen, changed = deliveries.changed_cursors(seen)
                known |= changed
                assert known == expected == deliveries.cursors()
                assert deliveries.changed_cursors(seen) == (seen, {})


def test_another_process_reads_what_is_being_written(path: Path) -> None:
    with pytest.raises(DeliveriesError, match=r"deliveries.sqlite does not exist yet; the gateway makes it"):
        Deliveries(path, read_only=True)
    with Deliveries(path) as deliveries, Deliveries(path, read_only=True) as reader:
        assert reader.changed_cursors() == (0, {})
        deliveries.acknowledge(7, 40)
        assert reader.changed_cursors() == (1, {7: 40})
        with pytest.raises(DeliveriesError, match=r"cannot (read|write to)"):
            reader.acknowledge(7, 50)
        assert reader.cursors() == {7: 40}


def test_threads_share_it(path: Path) -> None:
    with Deliveries(path) as deliveries, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: deliveries.acknowledge(number % 5, number), range(200)))
        list(pool.map(lambda number: deliveries.failed(1, number % 3, "503", number), range(60)))
        assert deliveries.cursors() == {number: 195 + number for number in range(5)}
        assert [row.attempts for row in deliveries.attempts(1)] == [20, 20, 20]


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(DeliveriesError, match="is a database of something else"):
        Deliveries(path)
    path.write_bytes(b"a text, and no database" * 100)
    with pytest.raises(DeliveriesError, match="is damaged"):
        Deliveries(path)
    with pytest.raises(DeliveriesError, match=r"cannot open .*nowhere"):
        Deliveries(path.parent / "nowhere" / "deliveries")


def test_a_lock_that_is_held_too_long_is_named_and_nothing_is_changed(path: Path) -> None:
    with Deliveries(path, busy_seconds=0.01) as deliveries:
        holder = apsw.Connection(str(path))
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeliveriesBusyError, match="another process keeps it locked"):
            deliveries.acknowledge(7, 40)
        holder.execute("ROLLBACK")
        holder.close()
        assert deliveries.cursors() == {}
        deliveries.acknowledge(7, 40)
