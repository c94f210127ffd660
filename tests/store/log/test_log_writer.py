"""The log: what is appended is read back, by many at a time, in this process and in others."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import LAST_RESORT_SECONDS

from tidings.errors import EventError
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.model.event_json import texts_of
from tidings.store.log.log_errors import LogBusyError, LogConflictError, LogError
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log
from tidings.store.log.page import RAW_SCHEMA, attributes_of

from ..log_events import STOCKS, cloud, events_of, stock


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


def test_events_that_do_not_fit_a_changed_domain_raise_or_are_rejected(tmp_path: Path) -> None:
    changed = Domain("stocks", [Attribute("symbol", "bigint"), Attribute("price", "double")])
    mixed = [{"symbol": 1, "price": 1.5}, {"symbol": "x", "price": 2.5}, {"price": 3.5}]
    with Log(tmp_path / "log") as log:
        log.append(mixed, domain="stocks")
        with pytest.raises(EventError, match=r"attribute 'symbol'.*position 1 of the log"):
            list(log.read_attributes(changed))
        (read,) = log.read_attributes(changed, on_error="reject")
    assert read.attributes.to_pylist() == [
        {"symbol": 1, "price": 1.5},
        {"symbol": None, "price": None},
        {"symbol": None, "price": 3.5},
    ]
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


def test_plain_events_need_a_domain_and_a_batch_keeps_its_own(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        with pytest.raises(EventError, match="domain"):
            log.append([{"a": 1}])
        with pytest.raises(EventError, match="'stocks', not 'bonds'"):
            log.append(read_events([stock(1)], STOCKS), domain="bonds")


def test_a_large_append_becomes_several_pages_and_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.store.log.appends.MAX_PAGE_EVENTS", 64)
    monkeypatch.setattr("tidings.store.log.appends.MAX_PAGE_BYTES", 10_000)
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
        code = "import sys; from tidings.store.log.log_writer import Log; Log(sys.argv[1])"
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

    def test_submit_is_refused_and_append_waits_when_too_much_waits(self, tmp_path: Path) -> None:
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
from tidings.store.log.log_reader import LogReader
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
        assert [reader.wait(LAST_RESORT_SECONDS) for reader in readers] == [0, 0]
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.close()


def test_a_reader_without_a_log_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is none"):
        LogReader(tmp_path)
    (tmp_path / "events.sqlite").write_bytes(b"")
    with pytest.raises(LogError, match="something else"):
        LogReader(tmp_path)
