"""A clock that is set does not date what comes after: times are the clock's, and finding a place allows for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tidings.store.formats import FormatError
from tidings.store.log.log_files import EVENTS
from tidings.store.log.log_in_topic import TopicLog
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log

from ..memory_topic import MemoryTopic

HOUR, DAY = 3_600, 86_400
YEAR = 365 * DAY
BEGIN = 1_700_000_000  # seconds since 1970


class Clock:
    """What time.time_ns says, in seconds from the beginning."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr("time.time_ns", lambda: round((BEGIN + self.seconds) * 1e9))

    def at(self, seconds: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(BEGIN + seconds, dt.UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(params=["files", "topic"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Opens a log, closed and opened again at every call."""
    topic, logs = MemoryTopic(), list[Log]()

    def again() -> Log:
        while logs:
            logs.pop().close()
        logs.append(Log(tmp_path / "log") if request.param == "files" else TopicLog(tmp_path / "log", topic))
        return logs[-1]

    yield again
    while logs:
        logs.pop().close()


def append(log: Log, clock: Clock, *seconds: float) -> None:
    """One event at each of these times."""
    for moment in seconds:
        clock.seconds = moment
        log.append([{"n": 1}], domain="d")


def times(log: LogReader) -> list[float]:
    return [moment.timestamp() - BEGIN for part in log.read() for moment in part["time"].to_pylist()]


def kept(log: LogReader, **age: float) -> int:
    return log.kept_from(max_age=dt.timedelta(**age))


def test_one_append_with_the_clock_ahead_dates_no_other(opened: Any, clock: Clock) -> None:
    append(opened(), clock, 0, 60, YEAR)
    log = opened()  # also over a restart
    append(log, clock, 120, 180)
    log = opened()
    append(log, clock, 240)
    assert times(log) == [0, 60, YEAR, 120, 180, 240]
    assert [log.position_at(clock.at(second)) for second in (0, 60, 61, 121, 181, 240)] == [0, 1, 2, 4, 5, 5]
    assert log.position_at(clock.at(241)) == log.end == 6  # which is yet to come


def test_age_removes_what_is_old_though_one_time_is_in_the_future(opened: Any, clock: Clock) -> None:
    log = opened()
    append(log, clock, 0, YEAR, HOUR, 2 * HOUR)
    clock.seconds = 3 * HOUR
    assert kept(log, hours=4) == 0
    assert kept(log, hours=2.5) == 1  # the next is as late as the one after it
    assert kept(log, hours=1.5) == 3
    assert kept(log, minutes=5) == 4


def test_a_clock_that_was_set_back_makes_nothing_old(opened: Any, clock: Clock) -> None:
    log = opened()
    append(log, clock, YEAR, YEAR + 60, 0, 60, YEAR + 120, YEAR + 180)
    clock.seconds = YEAR + HOUR
    assert kept(log, days=1) == 0
    assert kept(log, minutes=58.5) == 2  # what the clock said of the third and fourth is not believed
    assert log.position_at(clock.at(YEAR + 90)) == 2
    assert log.position_at(clock.at(YEAR + 150)) == 5


def test_nothing_is_removed_while_the_clock_is_set_back(opened: Any, clock: Clock) -> None:
    log = opened()
    append(log, clock, YEAR, YEAR + HOUR, 0, HOUR)
    assert kept(log, hours=2) == 0
    assert kept(log, minutes=30) == 3
    clock.seconds = 10 * DAY
    append(opened(), clock, 10 * DAY, YEAR + 10 * DAY, YEAR + 10 * DAY + 60)
    log = opened()
    assert kept(log, days=7) == 2  # those of ten days, whatever the clock said, and the ones between may be young
    assert kept(log, seconds=30) == 6


def test_a_clock_that_stays_ahead_keeps_nothing_for_ever(opened: Any, clock: Clock) -> None:
    log = opened()
    append(log, clock, 0, 3 * DAY, HOUR, DAY, 2 * DAY, 5 * DAY, 8 * DAY)
    clock.seconds = 9 * DAY
    assert kept(log, days=10) == 0
    assert kept(log, days=7) == 1  # up to as much longer as the clock was ahead
    assert kept(log, days=3.5) == 6
    assert log.retain(max_age=dt.timedelta(days=3.5)) == 6
    assert kept(log, hours=1) == 7


def test_a_small_correction_stands_the_clock_still(opened: Any, clock: Clock) -> None:
    log = opened()
    append(log, clock, 10, 9, 8.5, 11)
    assert times(log) == [10, 10, 10, 11]


def test_an_index_that_is_made_again_knows_the_steps_of_the_clock(tmp_path: Path, clock: Clock) -> None:
    topic = MemoryTopic()
    with TopicLog(tmp_path / "log", topic) as log:
        append(log, clock, 0, YEAR, 60, 120, 180)
        known = [log.position_at(clock.at(second)) for second in range(0, 200, 20)]
    with TopicLog(tmp_path / "again", topic) as log:
        assert [log.position_at(clock.at(second)) for second in range(0, 200, 20)] == known


def test_steps_leave_with_their_events(tmp_path: Path, clock: Clock) -> None:
    with Log(tmp_path / "log") as log:
        append(log, clock, YEAR, 0, YEAR, 60)
        assert log._ask("SELECT first FROM clock_steps") == [(1,), (3,)]
        log.retain(from_position=3)
        assert log._ask("SELECT first FROM clock_steps") == [(3,)]


def test_a_log_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    Log(tmp_path / "log").close()
    connection = apsw.Connection(str(tmp_path / "log" / EVENTS))
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(FormatError, match="has format 1, and this is Tidings with format 2"):
        Log(tmp_path / "log")
