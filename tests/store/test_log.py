"""The log against a plain list of what was appended to it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tidings.errors import EventError
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.decode import RAW_SCHEMA
from tidings.store.errors import LogBusyError, LogConflictError, LogError, LogRangeError
from tidings.store.log import Log
from tidings.store.page import attributes_of
from tidings.store.reader import LogReader
from tidings.store.record import texts_of

STOCKS = Domain(
    "stocks",
    [
        Attribute(name, type_)
        for name, type_ in {
            "symbol": "string", "price": "double", "fee": "decimal(10,2)", "at": "timestamp", "day": "date",
            "volume": "bigint", "venue.city": "string", "tags": "array<string>", "raw": "binary",
        }.items()
    ],
)  # fmt: skip


def stock(k: int) -> dict[str, Any]:
    return {
        "symbol": f"S{k}", "price": k + 0.1, "fee": Decimal("8.40"), "at": f"2024-05-01T12:00:{k % 60:02d}+02:00",
        "day": "2024-05-01", "volume": 2**53 + 1 + k, "venue": {"city": "Zürich\n" if k % 3 else None},
        "tags": ["a", None], "raw": "AAEC", "unknown": {"to": ["the", "domain"]},
    }  # fmt: skip


def cloud(source: str, id_: str, data: Any = None) -> dict[str, Any]:
    return {"specversion": "1.0", "source": source, "id": id_, "type": "test", "data": data or {}}


def events_of(log: LogReader, start: int | None = None, end: int | None = None, domain: str | None = None) -> list[Any]:
    rows = [row for batch in log.read(start, end, domain=domain) for row in batch.to_pylist()]
    return [(row["position"], row["domain"], json.loads(row["event"])) for row in rows]


def test_positions_count_from_zero_and_reading_gives_back_what_was_appended(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        assert log.append([{"n": 1}, {"n": 2}], domain="a") == [0, 1]
        assert log.append([], domain="a") == []
        assert log.append([{"n": 3}], domain="b") == [2]
        assert (log.start, log.end) == (0, 3)
        assert events_of(log) == [(0, "a", {"n": 1}), (1, "a", {"n": 2}), (2, "b", {"n": 3})]
        assert events_of(log, 1, 3) == [(1, "a", {"n": 2}), (2, "b", {"n": 3})]
        assert events_of(log, domain="b") == [(2, "b", {"n": 3})]
        assert log.event(1).event == {"n": 2}
    with Log(tmp_path / "log") as log:
        assert log.append([{"n": 4}], domain="a") == [3]


def test_raw_batches_carry_source_id_and_type_of_cloud_events_alone(tmp_path: Path) -> None:
    plain = {"id": 7, "source": "no CloudEvent"}
    with Log(tmp_path / "log") as log:
        log.append([cloud("/s", "1", {"id": "inner"}), {"type": "mine"}], domain="a")
        log.append([plain, cloud("/s", "2")], domain="a")
        table = pa.Table.from_batches(log.read())
    assert table.schema == RAW_SCHEMA
    assert table.select(["source", "id", "type"]).to_pylist() == [
        {"source": "/s", "id": "1", "type": "test"},
        {"source": None, "id": None, "type": None},
        {"source": None, "id": None, "type": None},
        {"source": "/s", "id": "2", "type": "test"},
    ]


@pytest.mark.parametrize("count", [1, 5, 100], ids=["one", "few: read from texts", "many: read from columns"])
@pytest.mark.parametrize("form", ["records", "CloudEvents", "Arrow"])
def test_attributes_read_back_are_those_that_were_checked_when_appended(tmp_path: Path, count: int, form: str) -> None:
    given: Any = [stock(k) for k in range(count)]
    if form == "CloudEvents":
        given = [cloud("/s", str(k), record) for k, record in enumerate(given)]
    batch = read_events(given, STOCKS)
    if form == "Arrow":
        batch = read_events(pa.Table.from_batches([attributes_of(batch)]), STOCKS)
    with Log(tmp_path / "log") as log:
        log.append([{"n": 0}], domain="other")
        positions = log.append(batch)
        read = list(log.read_attributes(STOCKS))
        part = list(log.read_attributes(STOCKS, count, count + 1))
    assert [position for part in read for position in part.position.to_pylist()] == positions
    assert pa.Table.from_batches([part.attributes for part in read]).equals(
        pa.Table.from_batches([attributes_of(batch)])
    )
    assert [columns.position.to_pylist() for columns in part] == [[count]]
    assert part[0].attributes["symbol"].to_pylist() == [f"S{count - 1}"]


def test_an_event_that_does_not_fit_a_changed_domain_is_raised_or_listed_with_its_position(tmp_path: Path) -> None:
    changed = Domain("stocks", [Attribute("symbol", "bigint"), Attribute("price", "double")])
    mixed = [{"symbol": 1, "price": 1.5}, {"symbol": "x", "price": 2.5}, {"price": 3.5}]
    with Log(tmp_path / "log") as log:
        log.append(mixed, domain="stocks")
        with pytest.raises(EventError, match=r"attribute 'symbol'.*position 1 of the log"):
            list(log.read_attributes(changed))
        (read,) = log.read_attributes(changed, on_error="reject")
    assert read.attributes.to_pylist() == [
        {"symbol": 1, "price": 1.5}, {"symbol": None, "price": None}, {"symbol": None, "price": 3.5}
    ]  # fmt: skip
    assert [reason is not None for reason in read.rejected.to_pylist()] == [False, True, False]


def test_a_domain_with_a_new_attribute_finds_it_in_events_that_were_appended_before(tmp_path: Path) -> None:
    old, new = (Domain("d", [Attribute(name, "int") for name in names]) for names in ("a", "ab"))
    with Log(tmp_path / "log") as log:
        log.append(read_events([{"a": k, "b": -k} for k in range(100)], old))
        read = pa.Table.from_batches([part.attributes for part in log.read_attributes(new)])
    assert read.column("b").to_pylist() == [-k for k in range(100)]


def test_texts_given_with_events_are_kept_and_may_have_line_breaks(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append([{"a": "x\u2028y"}, {"a": 2}], domain="d", texts=['{\n "a":\r\n "x\u2028y"}', '{"a": 2}'])
        assert [event for _, _, event in events_of(log)] == [{"a": "x\u2028y"}, {"a": 2}]
        with pytest.raises(EventError, match="2 events, and 1 texts"):
            log.append([{"a": 1}, {"a": 2}], domain="d", texts=["{}"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("8.40"), "8.40"), (Decimal("1E+3"), "1E+3"), (Decimal("12345678901234567.12"), "12345678901234567.12"),
        (2**63 - 1, "9223372036854775807"), (0.1, "0.1"), (True, "true"), (None, "null"),
        ('"\\\n\0', r'"\"\\\n\u0000"'),
        (dt.date(2024, 5, 1), '"2024-05-01"'), (dt.datetime(2024, 5, 1, tzinfo=dt.UTC), '"2024-05-01T00:00:00+00:00"'),
        (b"\0\1", '"AAE="'), ({"a": [Decimal("0.1")]}, '{"a":[0.1]}'), ("Zürich", '"Zürich"'),
    ],
)  # fmt: skip
def test_values_are_written_as_exact_json(value: Any, text: str) -> None:
    assert texts_of([{"v": value}]) == [f'{{"v":{text}}}']


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), object(), "\ud800"])
def test_a_value_that_json_cannot_hold_is_refused_with_its_row(tmp_path: Path, value: Any) -> None:
    with Log(tmp_path / "log") as log:
        with pytest.raises(EventError, match="row 1"):
            log.append([{"v": 1}, {"v": value}], domain="d")
        assert log.end == 0


@pytest.mark.parametrize("events", [{"a": 1}, "text", [1], ["text"]])
def test_what_is_no_list_of_events_is_refused(tmp_path: Path, events: Any) -> None:
    with Log(tmp_path / "log") as log, pytest.raises(EventError):
        log.append(events, domain="d")


def test_a_log_wants_the_domain_of_plain_events_and_refuses_another_than_the_batch_has(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        with pytest.raises(EventError, match="domain"):
            log.append([{"a": 1}])
        with pytest.raises(EventError, match="'stocks', not 'bonds'"):
            log.append(read_events([stock(1)], STOCKS), domain="bonds")


class TestDuplicates:
    def test_an_event_of_the_same_source_and_id_answers_the_position_of_the_first(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1"), cloud("/a", "2"), cloud("/b", "1")], domain="d") == [0, 1, 2]
            assert log.append([cloud("/a", "2"), cloud("/a", "3"), cloud("/b", "1"), {"n": 1}], domain="d") == [
                1,
                3,
                2,
                4,
            ]
            assert log.append([cloud("/a", "3")], domain="d") == [3]
            assert log.end == 5

    def test_it_does_so_within_one_append_and_after_the_log_was_opened_again(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1"), cloud("/a", "1"), cloud("/a", "2")], domain="d") == [0, 0, 1]
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "2"), cloud("/a", "9")], domain="d") == [1, 2]

    def test_the_order_of_keys_is_no_difference(self, tmp_path: Path) -> None:
        event = cloud("/a", "1", {"x": 1, "y": Decimal("8.40")})
        turned = dict(reversed(event.items())) | {"data": {"y": Decimal("8.4"), "x": 1}}
        with Log(tmp_path / "log") as log:
            assert log.append([event], domain="d") == log.append([turned], domain="d") == [0]

    @pytest.mark.parametrize("data", [{"x": 2}, {"x": True}, {"x": "1"}, {}])
    def test_another_event_of_the_same_name_is_refused_and_nothing_of_its_append_is_kept(
        self, tmp_path: Path, data: dict[str, Any]
    ) -> None:
        with Log(tmp_path / "log") as log:
            log.append([cloud("/a", "0"), cloud("/a", "1", {"x": 1})], domain="d")
            with pytest.raises(LogConflictError, match=r"row 1.*'/a'.*'1'.*position 1") as refused:
                log.append([cloud("/a", "2"), cloud("/a", "1", data)], domain="d")
            assert (refused.value.row, refused.value.position) == (1, 1)
            assert log.append([cloud("/a", "2")], domain="d") == [2]

    def test_names_that_concatenate_alike_are_apart(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("ab", "c"), cloud("a", "bc")], domain="d") == [0, 1]

    def test_domains_have_names_of_their_own(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1", {"x": 1})], domain="d") == [0]
            assert log.append([cloud("/a", "1", {"x": 2})], domain="e") == [1]
            futures = [log.submit([cloud("/a", "2", {"x": k})], domain=domain) for k, domain in enumerate("ded")]
            assert [future.exception() is None for future in futures] == [True, True, False]
            assert log.append([cloud("/a", "1", {"x": 2})], domain="e") == [1]

    def test_two_names_of_one_hash_are_two_events(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import numpy as np

        monkeypatch.setattr("tidings.store.pending.keys_of", lambda domain, names: np.full(len(names), 7, np.uint64))
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1")], domain="d") == [0]
            assert log.append([cloud("/a", "2")], domain="d") == [1]
            assert log.append([cloud("/a", "1"), cloud("/a", "2"), cloud("/a", "3")], domain="d") == [0, 1, 2]

    def test_names_are_forgotten_only_beyond_the_number_that_is_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidings.store.ids._RUN", 10)
        with Log(tmp_path / "log", remember=30) as log:
            for k in range(100):
                log.append([cloud("/a", str(k))], domain="d")
            assert log.append([cloud("/a", str(k)) for k in range(70, 100)], domain="d") == list(range(70, 100))
            assert log.append([cloud("/a", "0")], domain="d") == [100]

    def test_a_domain_with_an_attribute_specversion_has_plain_events(self, tmp_path: Path) -> None:
        domain = Domain("d", [Attribute("specversion", "string"), Attribute("id", "string")])
        batch = read_events([{"specversion": "1.0", "source": "/a", "id": "1"}] * 2, domain)
        with Log(tmp_path / "log") as log:
            assert log.append(batch) == [0, 1]


class TestRetention:
    def test_what_is_removed_is_named_and_positions_go_on(self, tmp_path: Path) -> None:
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

    def test_by_age_the_younger_are_kept(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 0}], domain="d")
            time.sleep(0.2)
            log.append([{"n": 1}], domain="d")
            assert log.retain(max_age=dt.timedelta(minutes=1)) == 0
            assert log.retain(max_age=dt.timedelta(milliseconds=150)) == 1

    def test_more_pages_than_one_transaction_removes_go_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidings.store.log._REMOVED_AT_ONCE", 3)
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
    def test_the_position_of_a_time_is_of_the_first_event_at_it_or_after(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            for n in (1, 3, 1, 5):
                log.append([{"n": 1}] * n, domain="d")
                time.sleep(0.002)
            times = {batch_time: None for part in log.read() for batch_time in part["time"].to_pylist()}
            assert [log.position_at(moment) for moment in times] == [0, 1, 4, 5]
            later = max(times) + dt.timedelta(microseconds=1)
            assert log.position_at(later) == log.end
            with pytest.raises(LogRangeError, match="zone"):
                log.position_at(later.replace(tzinfo=None))

    def test_times_never_go_back_when_the_clock_does(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([2_000_000_000, 1_000_000_000, 3_000_000_000])
        monkeypatch.setattr("tidings.store.log.time.time_ns", lambda: next(clock))
        with Log(tmp_path / "log") as log:
            for _ in range(3):
                log.append([{"n": 1}], domain="d")
            seconds = [moment.timestamp() for part in log.read() for moment in part["time"].to_pylist()]
        assert seconds == [2, 2, 3]

    def test_an_advance_takes_at_most_so_many_events_of_the_domain_and_ends_with_one_of_them(
        self, tmp_path: Path
    ) -> None:
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
    def test_positions_that_are_not_there_yet_are_refused(self, tmp_path: Path, start: int, end: int) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 1}, {"n": 2}], domain="d")
            with pytest.raises(LogRangeError, match="ends at 2"):
                log.read(start, end)


def test_a_large_append_becomes_several_pages_and_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.store.pending.MAX_PAGE_EVENTS", 64)
    monkeypatch.setattr("tidings.store.pending.MAX_PAGE_BYTES", 10_000)
    batch = read_events([stock(k) for k in range(300)], STOCKS)
    with Log(tmp_path / "log") as log:
        assert log.append(batch) == list(range(300))
        pages = list(log.pages(0, 300))
        assert len(pages) >= 5
        assert all(page.count <= 64 and page.length <= 10_000 for page in pages)
        read = pa.Table.from_batches([part.attributes for part in log.read_attributes(STOCKS)])
        assert read.equals(pa.Table.from_batches([attributes_of(batch)]))


class TestWriters:
    def test_a_second_writer_is_refused_with_the_name_of_the_first(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log"), pytest.raises(LogBusyError, match="being written by process"):
            Log(tmp_path / "log")
        Log(tmp_path / "log").close()

    def test_so_is_one_in_another_process(self, tmp_path: Path) -> None:
        code = "import sys; from tidings.store.log import Log; Log(sys.argv[1])"
        with Log(tmp_path / "log"):
            tried = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, check=False
            )
        assert "is being written by process" in tried.stderr

    def test_appends_of_many_threads_share_transactions_and_keep_each_threads_order(self, tmp_path: Path) -> None:
        answers: dict[int, list[int]] = {}
        with Log(tmp_path / "log") as log:

            def publish(thread: int) -> None:
                answers[thread] = [log.append([{"t": thread, "n": n}], domain="d")[0] for n in range(40)]

            threads = [threading.Thread(target=publish, args=(k,)) for k in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pages = len(list(log.pages(0, log.end)))
            read = events_of(log)
        assert sorted(position for given in answers.values() for position in given) == list(range(640))
        assert pages < 400
        for k, given in answers.items():
            assert given == sorted(given)
            assert [(position, event["n"]) for position, _, event in read if event["t"] == k] == [
                (position, n) for n, position in enumerate(given)
            ]

    def test_concurrent_retries_of_one_event_are_one_event(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            futures = [log.submit([cloud("/a", str(k % 5))], domain="d") for k in range(100)]
            answers = [future.result()[0] for future in futures]
            assert log.end == 5
            assert all(answers[k] == answers[k % 5] for k in range(100))

    def test_a_conflict_in_a_group_fails_its_own_append_alone(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            futures = [log.submit([cloud("/a", "1", {"x": k // 2})], domain="d") for k in range(4)]
            outcomes = [type(future.exception()) for future in futures]
            assert outcomes == [type(None), type(None), LogConflictError, LogConflictError]
            assert log.end == 1

    def test_submitted_appends_can_be_awaited_and_cancelled(self, tmp_path: Path) -> None:
        async def publish(log: Log) -> list[int]:
            waiting = [asyncio.wrap_future(log.submit([{"n": n}], domain="d")) for n in range(50)]
            for future in waiting[::7]:
                future.cancel()
            given = await asyncio.gather(*waiting, return_exceptions=True)
            return [positions[0] for positions in given if isinstance(positions, list)]

        with Log(tmp_path / "log") as log:
            positions = asyncio.run(publish(log))
            assert len(positions) == len(set(positions)) == 50 - len(range(0, 50, 7))
            assert log.append([{"n": 50}], domain="d")[0] >= max(positions)

    def test_too_much_that_waits_is_refused_and_append_waits_for_room(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log", max_waiting_bytes=1000) as log:
            hold, held = threading.Event(), threading.Event()
            blocker = threading.Thread(target=lambda: log._do(lambda: (held.set(), hold.wait())))
            blocker.start()
            held.wait()
            first = log.submit([{"n": "x" * 800}], domain="d")
            with pytest.raises(LogBusyError, match="try again"):
                log.submit([{"n": "y" * 800}], domain="d")
            waiting = threading.Thread(target=lambda: log.append([{"n": "z" * 800}], domain="d"))
            waiting.start()
            hold.set()
            waiting.join()
            blocker.join()
            assert first.result() == [0]
            assert log.end == 2

    def test_a_closed_log_refuses_and_closing_writes_what_waits(self, tmp_path: Path) -> None:
        log = Log(tmp_path / "log")
        futures = [log.submit([{"n": n}], domain="d") for n in range(100)]
        log.close()
        log.close()
        assert [future.result() for future in futures] == [[n] for n in range(100)]
        with pytest.raises(LogError, match="closed"):
            log.append([{"n": 1}], domain="d")


READER = """
import json, sys
from tidings.store.reader import LogReader
with LogReader(sys.argv[1]) as log:
    print("ready", flush=True)
    at = 0
    while at < int(sys.argv[2]):
        end = log.end
        assert end >= at
        seen = [n for batch in log.read(at, end) for n in batch["position"].to_pylist()]
        assert seen == list(range(at, end)), (at, end, seen[:3])
        at = end
"""


def test_readers_in_other_processes_follow_the_writer_without_gaps(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append([{"n": -1}], domain="d")
        command = [sys.executable, "-c", READER, str(tmp_path / "log"), "1500"]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"ready\n"
        while log.end < 1500:
            log.append([{"n": n} for n in range(7)], domain="ab"[log.end % 2])
        assert [reader.wait(timeout=30) for reader in readers] == [0, 0]
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.close()


def test_a_reader_wants_a_log_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is none"):
        LogReader(tmp_path)
    (tmp_path / "events.sqlite").write_bytes(b"")
    with pytest.raises(LogError, match="something else"):
        LogReader(tmp_path)


NAMES = st.tuples(st.sampled_from(["/a", "/b"]), st.sampled_from("123"))
EVENTS = st.lists(st.one_of(NAMES, st.integers(0, 3)), max_size=25)


class LogMachine(RuleBasedStateMachine):
    """A log against a list: append, duplicates, retention, reading, opening again."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tidings-log-"))
        self.log = Log(self.directory)
        self.model: list[tuple[str, dict[str, Any]]] = []  # by position
        self.names: dict[tuple[str, str, str], int] = {}
        self.sent: list[int] = []  # the ends of appends, between which retention may cut

    @initialize(large=st.integers(0, 40))
    def begin(self, large: int) -> None:
        self.append([0] * large, "a", typed=True)

    @rule(events=EVENTS, domain=st.sampled_from("ab"), typed=st.booleans())
    def append(self, events: list[Any], domain: str, typed: bool) -> None:
        given = [cloud(*event) if isinstance(event, tuple) else {"n": event} for event in events]
        batch: Any = read_events(given, Domain(domain, [Attribute("n", "int")])) if typed else given
        expected = []
        for event, record in zip(events, given, strict=True):
            known = self.names.get((domain, *event)) if isinstance(event, tuple) else None
            if known is None or known < self.log.start:
                known = len(self.model)
                self.model.append((domain, record))
                if isinstance(event, tuple):
                    self.names[domain, *event] = known
            expected.append(known)
        assert self.log.append(batch, domain=domain) == expected
        self.sent.append(len(self.model))

    @rule()
    def open_again(self) -> None:
        self.log.close()
        self.log = Log(self.directory)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        limit = data.draw(st.sampled_from(self.sent))
        assert self.log.retain(from_position=limit) == max(limit, self.log.start)

    @rule(data=st.data(), domain=st.sampled_from(["a", "b", None]))
    def read_a_part(self, data: st.DataObject, domain: str | None) -> None:
        start = data.draw(st.integers(self.log.start, len(self.model)))
        end = data.draw(st.integers(start, len(self.model)))
        expected = [(k, *self.model[k]) for k in range(start, end) if domain in (None, self.model[k][0])]
        assert events_of(self.log, start, end, domain) == expected

    @rule(domain=st.sampled_from("ab"))
    def read_attributes(self, domain: str) -> None:
        read = [
            row
            for part in self.log.read_attributes(Domain(domain, [Attribute("n", "int")]))
            for row in zip(part.position.to_pylist(), part.attributes["n"].to_pylist(), strict=True)
        ]
        kept = range(self.log.start, len(self.model))
        assert read == [(k, self.model[k][1].get("n")) for k in kept if self.model[k][0] == domain]

    @invariant()
    def it_ends_where_the_list_does(self) -> None:
        assert self.log.end == len(self.model)

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.directory)


@pytest.mark.parametrize("examples", [12, pytest.param(500, marks=pytest.mark.long)])
def test_a_log_does_what_a_list_does(examples: int) -> None:
    run_state_machine_as_test(LogMachine, settings=settings(max_examples=examples, stateful_step_count=20))
