"""Where the log begins, where a time is in it, and how far a read goes."""

from __future__ import annotations

import datetime as dt
import time
from itertools import count
from pathlib import Path

import pytest

from tidings.store.log.log_errors import LogRangeError
from tidings.store.log.log_writer import Log

from ..log_events import cloud, events_of


class TestRetention:
    def test_removed_positions_are_named_and_later_ones_continue(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            for k in range(10):
                log.append([{"n": k}], domain="d")
            assert log.retain(from_position=4) == 4
            assert events_of(log)[0] == (4, "d", {"n": 4})
            with pytest.raises(LogRangeError, match=r"positions 2 to 3 were removed .* begins at 4"):
                events_of(log, 2, 6)
            assert log.retain(from_position=10) == 10
            assert log.append([{"n": 10}], domain="d") == [10]
        with Log(tmp_path / "log") as log:
            assert (log.start, log.end) == (10, 11)

    def test_a_domain_that_lost_nothing_is_read_across_what_others_lost(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 0}], domain="a")
            log.append([{"n": 1}], domain="b")
            log.append([{"n": 2}], domain="b")
            log.append([{"n": 3}], domain="a")
            log.retain(from_position=2)
            assert events_of(log, 1, domain="a") == [(3, "a", {"n": 3})]
            with pytest.raises(LogRangeError, match="positions 1 to 1"):
                events_of(log, 1, domain="b")

    def test_pages_are_kept_whole(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": k} for k in range(10)], domain="d")
            log.append([{"n": 10}], domain="d")
            assert log.retain(from_position=5) == 0
            assert log.retain(from_position=10) == 10

    def test_by_bytes_the_newest_are_kept(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            for _ in range(10):
                log.append([{"n": "x" * 90}], domain="d")  # 100 bytes with its braces
            assert log.stored_bytes == 980
            assert log.retain(max_bytes=500) == 5
            assert log.retain(max_bytes=10_000) == 5
            assert log.retain(max_bytes=0) == 10

    def test_by_age_the_younger_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        began = time.time_ns()
        with Log(tmp_path / "log") as log:
            log.append([{"n": 0}], domain="d")
            monkeypatch.setattr("time.time_ns", lambda: began + 3600 * 10**9)
            log.append([{"n": 1}], domain="d")
            assert log.retain(max_age=dt.timedelta(hours=2)) == 0
            assert log.retain(max_age=dt.timedelta(minutes=1)) == 1

    def test_more_pages_than_one_transaction_removes_go_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidings.store.log.log_writer._REMOVED_AT_ONCE", 3)
        with Log(tmp_path / "log") as log:
            for k in range(10):
                log.append([{"n": k}], domain="d")
            assert log.retain(from_position=9) == 9

    def test_an_event_that_was_removed_may_come_again(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([cloud("/a", "1")], domain="d")
            log.retain(from_position=1)
            assert log.append([cloud("/a", "1")], domain="d") == [1]


class TestPlaces:
    def test_the_position_of_a_time_is_of_the_first_event_at_it_or_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = count(time.time_ns(), 2_000_000)  # every look at it comes 2 ms later
        monkeypatch.setattr("time.time_ns", lambda: next(clock))
        with Log(tmp_path / "log") as log:
            for n in (1, 3, 1, 5):
                log.append([{"n": 1}] * n, domain="d")
            times = {batch_time: None for part in log.read() for batch_time in part["time"].to_pylist()}
            assert [log.position_at(moment) for moment in times] == [0, 1, 4, 5]
            later = max(times) + dt.timedelta(microseconds=1)
            assert log.position_at(later) == log.end
            with pytest.raises(LogRangeError, match="zone"):
                log.position_at(later.replace(tzinfo=None))

    def test_times_never_go_back_when_the_clock_does(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([2_000_000_000, 1_000_000_000, 3_000_000_000])
        monkeypatch.setattr("tidings.store.log.log_writer.time.time_ns", lambda: next(clock))
        with Log(tmp_path / "log") as log:
            for _ in range(3):
                log.append([{"n": 1}], domain="d")
            seconds = [moment.timestamp() for part in log.read() for moment in part["time"].to_pylist()]
        assert seconds == [2, 2, 3]

    def test_an_advance_ends_right_after_the_last_event_that_it_takes(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            for domain in "aababb":
                log.append([{"n": 1}] * 3, domain=domain)
            table = [  # start, domain, events, reached
                (0, None, None, 18), (0, None, 5, 5), (17, None, 5, 18), (18, None, 5, 18),
                (0, "a", None, 12), (0, "a", 7, 10), (0, "a", 6, 6), (5, "a", 2, 10), (12, "a", 2, 12),
                (0, "b", 1, 7), (7, "b", 3, 13), (0, "b", None, 18), (18, "b", None, 18), (0, "c", 3, 0),
            ]  # fmt: skip
            assert [log.advance(start, domain=domain, events=events) for start, domain, events, _ in table] == [
                reached for *_, reached in table
            ]
            assert log.advance(0, domain="b", end=8) == 8

    @pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (0, 3), (3, 3)])
    def test_positions_after_the_end_are_refused(self, tmp_path: Path, start: int, end: int) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 1}, {"n": 2}], domain="d")
            with pytest.raises(LogRangeError, match="ends at 2"):
                log.read(start, end)


def test_bytes_are_counted_for_all_domains_or_for_those_of_a_prefix(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for domain in ("ada.a", "eve.a", "ada.b", "adam.a"):
            log.append([{"n": 1}], domain=domain)
        one = log.bytes_between(0, 1)
        assert log.bytes_between(0, 4) == 4 * one
        assert [log.bytes_between(0, 4, prefix=prefix) for prefix in ("ada.", "eve.", "ad")] == [2 * one, one, 3 * one]
        assert log.position_of_newest(2 * one) == 2
        assert log.position_of_newest(one, prefix="ada.") == 1
        assert log.position_of_newest(2 * one, prefix="ada.") == 0
        assert log.position_of_newest(one, before=2, prefix="ada.") == 0
