"""A log in a topic is a log: its order, its identities and its end are the same, whatever becomes of its writers."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidings.model.event import read_events
from tidings.store.log.log_errors import (
    LogBusyError,
    LogConflictError,
    LogCorruptError,
    LogError,
    LogRangeError,
    LogUnknownError,
)
from tidings.store.log.log_in_topic import TopicLog
from tidings.store.log.log_writer import Log
from tidings.store.log.page import MAX_PAGE_EVENTS, attributes_of
from tidings.store.log.topic_pages import fetched, write_place

from ..log_events import STOCKS, cloud, events_of, stock
from ..memory_topic import MemoryTopic


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic()


def numbers(log: Any, start: int | None = None) -> list[tuple[int, int]]:
    return [(position, event["n"]) for position, _, event in events_of(log, start)]


def test_appended_events_are_read_by_position_and_continue_after_a_restart(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path, topic) as log:
        assert log.append([{"n": 1}, {"n": 2}], domain="a") == [0, 1]
        assert log.append([{"n": 3}], domain="b") == [2]
        assert (log.start, log.end) == (0, 3)
        assert events_of(log, domain="b") == [(2, "b", {"n": 3})]
    with TopicLog(tmp_path, topic) as log:
        assert log.append([{"n": 4}], domain="a") == [3]
        assert numbers(log) == [(0, 1), (1, 2), (2, 3), (3, 4)]
        assert log.position_at(log.event(3).time) == 3
        assert log.stored_bytes > 0
        assert log.kept_from(max_bytes=1) == 4


def test_attributes_come_back_as_columns(tmp_path: Path, topic: MemoryTopic) -> None:
    batch = read_events([stock(k) for k in range(100)], STOCKS)
    with TopicLog(tmp_path, topic) as log:
        log.append(batch)
        read = pa.Table.from_batches([part.attributes for part in log.read_attributes(STOCKS)])
        (placed,) = log.placed(0, 100, domain=STOCKS.name)
        assert placed.page.attributes is None
        (page,) = fetched(topic, [placed])
        page.verify()
    assert read.equals(pa.Table.from_batches([attributes_of(batch)]))


def test_columns_that_a_topic_cannot_take_are_left_out_and_read_from_the_texts(
    tmp_path: Path, topic: MemoryTopic
) -> None:
    topic.max_record_bytes = 4_000
    batch = read_events([stock(k) for k in range(20)], STOCKS)
    with TopicLog(tmp_path, topic) as log:
        log.append(batch)
        (page,) = log.pages(0, 20)
        read = pa.Table.from_batches([part.attributes for part in log.read_attributes(STOCKS)])
    assert page.attributes is None
    assert read.equals(pa.Table.from_batches([attributes_of(batch)]))


def test_duplicates_are_found_after_a_restart_and_without_the_index(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path / "one", topic) as log:
        assert log.append([cloud("/s", "1", {"n": 1}), cloud("/s", "2")], domain="a") == [0, 1]
    for directory in ("one", "another"):
        with TopicLog(tmp_path / directory, topic) as log:
            assert log.append([cloud("/s", "1", {"n": 1})], domain="a") == [0]
            with pytest.raises(LogConflictError, match="position 1"):
                log.append([cloud("/s", "2", {"n": 9})], domain="a")


def test_an_index_that_is_lost_is_made_again_from_the_topic(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path / "log", topic) as log:
        for n in range(20):
            log.append([{"n": n}], domain="ab"[n % 2])
        before = events_of(log)
    shutil.rmtree(tmp_path / "log")
    with TopicLog(tmp_path / "log", topic) as log:
        assert events_of(log) == before
        assert log.append([{"n": 20}], domain="a") == [20]


def test_the_index_of_a_topic_begins_after_its_removed_events(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path / "log", topic) as log:
        for n in range(4):
            log.append([{"n": n}], domain="a")
        assert log.retain(from_position=2) == 2
    assert topic.low > 0
    with TopicLog(tmp_path / "another", topic) as log:
        assert (log.start, log.end) == (2, 4)
        assert numbers(log) == [(2, 2), (3, 3)]


def test_the_rest_of_a_partly_removed_append_is_kept(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path / "log", topic) as log:
        log.append([{"n": n} for n in range(MAX_PAGE_EVENTS + 1)], domain="a")
        assert log.retain(from_position=MAX_PAGE_EVENTS) == MAX_PAGE_EVENTS
    for directory in ("log", "another"):
        with TopicLog(tmp_path / directory, topic) as log:
            assert numbers(log) == [(MAX_PAGE_EVENTS, MAX_PAGE_EVENTS)]


def test_an_unconfirmed_append_counts_wholly_and_once_or_not_at_all(tmp_path: Path, topic: MemoryTopic) -> None:
    event = cloud("/s", "1", {"n": 1})
    for keeps in (1, 0):  # it arrived, or it did not
        topic.keeps = keeps
        with TopicLog(tmp_path / str(keeps), topic) as log:  # whose own first record is not answered
            pass
    with TopicLog(tmp_path / "log", topic) as log:
        for keeps, expected in ((1, 0), (0, 1)):
            event = cloud("/s", str(keeps), {"n": keeps})
            topic.keeps = keeps
            with pytest.raises(LogUnknownError):
                log.append([event], domain="a")
            assert log.append([event], domain="a") == [expected]
        assert [position for position, _, _ in events_of(log)] == [0, 1]


def test_of_an_append_of_several_pages_all_count_or_none(tmp_path: Path, topic: MemoryTopic) -> None:
    many = [{"n": n} for n in range(MAX_PAGE_EVENTS + 1)]
    with TopicLog(tmp_path / "log", topic) as log:
        topic.keeps = 1
        with pytest.raises(LogUnknownError):
            log.append(many, domain="a")
        assert log.end == 0
        assert log.append([{"n": -1}], domain="a") == [0]
        topic.arrive(topic.late)  # too late: its place is taken
        with pytest.raises(LogBusyError, match="another process"):
            log.append([{"n": -2}], domain="a")
        assert log.append([{"n": -3}], domain="a") == [1]
        assert numbers(log) == [(0, -1), (1, -3)]
        assert log.append(many, domain="a") == list(range(2, 2 + len(many)))
    with TopicLog(tmp_path / "another", topic) as log:
        assert numbers(log)[:3] == [(0, -1), (1, -3), (2, 0)]


def test_of_two_writers_the_earlier_is_refused_and_void_records_are_never_read(
    tmp_path: Path, topic: MemoryTopic
) -> None:
    one = TopicLog(tmp_path / "one", topic)
    assert one.append([{"n": 1}], domain="a") == [0]
    two = TopicLog(tmp_path / "two", topic)
    assert two.append([{"n": 2}], domain="a") == [1]
    with pytest.raises(LogBusyError, match="another process"):
        one.append([{"n": 3}], domain="a")
    assert one.append([{"n": 4}], domain="a") == [2]  # it has seen by now what the other did
    assert numbers(one) == [(0, 1), (1, 2), (2, 4)]
    one.close()
    two.close()
    with TopicLog(tmp_path / "three", topic) as three:
        assert numbers(three) == [(0, 1), (1, 2), (2, 4)]


def test_an_unreachable_topic_refuses_appends_and_nothing_else(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path, topic) as log:
        log.append([{"n": 1}], domain="a")
        topic.away = True
        for _ in range(2):
            with pytest.raises(LogBusyError):
                log.append([{"n": 2}], domain="a")
        assert log.end == 1
        topic.away = False
        assert log.append([{"n": 3}], domain="a") == [1]


def test_a_topic_that_has_lost_what_it_confirmed_is_refused(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path, topic) as log:
        log.append([{"n": 1}], domain="a")
    topic.records.popitem()
    topic.high -= 1
    with pytest.raises(LogCorruptError, match="has lost records that it had confirmed"):
        TopicLog(tmp_path, topic)


def test_a_record_that_is_missing_in_the_middle_is_noticed(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path / "one", topic) as log:
        for n in range(3):
            log.append([{"n": n}], domain="a")
        del topic.records[2]
        with pytest.raises(LogCorruptError, match="lost the record at offset 2"):
            numbers(log)
    with pytest.raises(LogCorruptError, match="position 2 at offset 3, where 1 comes next"):
        TopicLog(tmp_path / "two", topic)


def test_an_event_that_was_changed_on_its_way_is_noticed(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path, topic) as log:
        log.append([{"n": 1}], domain="a")
        topic.records[1] = topic.records[1].replace(b'"n":1', b'"n":7')
        with pytest.raises(LogCorruptError, match="checksum"):
            numbers(log)


def test_removed_events_are_reported_and_positions_continue(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path, topic) as log:
        for n in range(4):
            log.append([{"n": n}], domain="ab"[n % 2])
        assert log.retain(from_position=1) == 1
        with pytest.raises(LogRangeError, match="removed by retention"):
            list(log.pages(0, 1))
        assert [page.first for page in log.pages(0, 4, domain="b")] == [1, 3]  # which has lost nothing
        assert log.retain(from_position=4) == 4
        assert topic.records  # the last one says where the log goes on
    topic.remove_before(topic.high - 1)
    with TopicLog(tmp_path / "another", topic) as log:
        assert log.append([{"n": 4}], domain="a") == [4]
    topic.remove_before(topic.high)  # as by an operator's limit
    with TopicLog(tmp_path / "another", topic) as log:
        assert log.start == 5
        assert log.append([{"n": 5}], domain="a") == [5]
    topic.remove_before(topic.high)
    with pytest.raises(LogCorruptError, match="the next position is not known"):
        TopicLog(tmp_path / "third", topic)


def test_records_of_others_in_the_topic_are_passed_over(tmp_path: Path, topic: MemoryTopic) -> None:
    topic.arrive([b"", b'{"not": "ours"}'])
    with TopicLog(tmp_path / "log", topic) as log:
        assert log.append([{"n": 1}], domain="a") == [0]
    topic.arrive([b"TDP1"])
    with TopicLog(tmp_path / "another", topic) as log:
        assert log.append([{"n": 2}], domain="a") == [1]
        assert numbers(log) == [(0, 1), (1, 2)]


def test_a_directory_is_of_one_kind_of_log(tmp_path: Path, topic: MemoryTopic) -> None:
    with TopicLog(tmp_path / "topic", topic):
        pass
    with pytest.raises(LogError, match="are in a topic"):
        Log(tmp_path / "topic")
    with Log(tmp_path / "own"):
        pass
    with pytest.raises(LogError, match="has the events itself"):
        TopicLog(tmp_path / "own", topic)


@pytest.mark.parametrize("seed", range(8))
def test_every_result_was_true_whatever_is_lost_late_or_contended(
    tmp_path: Path, topic: MemoryTopic, seed: int
) -> None:
    """Two writers by turns, appends that are not answered, records that come late: answers hold, each event once."""
    chance = Random(seed)
    logs: dict[str, TopicLog] = {}
    late: list[bytes] = []
    answered: dict[int, int] = {}
    unknown: set[int] = set()
    for n in range(40):
        name = chance.choice("ab")
        if name in logs and chance.random() < 0.2:
            logs.pop(name).close()
        if chance.random() < 0.1 and name not in logs:
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        if late and chance.random() < 0.4:
            topic.arrive(late)
            late = []
        if name not in logs:
            logs[name] = TopicLog(tmp_path / name, topic)
        topic.keeps = chance.choice([None, None, None, 0, 1])
        try:
            (answered[n],) = logs[name].append([{"n": n}], domain="a")
        except LogUnknownError:
            unknown.add(n)
        except LogBusyError:  # another was faster: nothing was appended
            pass
        topic.keeps = None
        late, topic.late = late + topic.late, []
    for log in logs.values():
        log.close()
    with TopicLog(tmp_path / "judge", topic) as judge:
        there = numbers(judge)
    assert [position for position, _ in there] == list(range(len(there)))
    assert {n: position for position, n in there if n in answered} == answered
    found = [n for _, n in there]
    assert len(set(found)) == len(found)
    assert set(found) <= answered.keys() | unknown


def test_the_events_of_a_domain_are_counted_from_the_index_while_the_topic_is_away(
    tmp_path: Path, topic: MemoryTopic
) -> None:
    with TopicLog(tmp_path, topic) as log:
        log.append([{"n": n} for n in range(30)], domain="a")
        log.append([{"n": n} for n in range(5)], domain="b")
        topic.away = True
        assert sum(count for _, count, _ in log.parts(20, log.end, "a")) == 10
        assert list(log.parts(30, log.end, "a")) == []
        topic.away = False


def test_check_data_reads_the_topic_to_its_end(
    tmp_path: Path, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from tidings.service.data.check_data import check_data
    from tidings.service.data.data_directory import DataDirectory
    from tidings.service.data.private_files import tighten
    from tidings.store.catalogue import Catalogue
    from tidings.store.mailboxes.deliveries import Deliveries

    def found() -> str:
        tighten(data.path)
        return "\n".join(map(str, check_data(data).findings))

    data = DataDirectory(tmp_path / "data")
    data.make()
    with TopicLog(data.log, topic) as log:
        for n in range(10):
            log.append([{"n": n}], domain="ada.quotes")
    write_place(data.log, "kafka://127.0.0.1:9/events")
    Deliveries(data.deliveries).close()
    Catalogue(data.catalogue).close()
    monkeypatch.setattr("tidings.store.log.log_reader.topic_at", lambda url: topic)
    assert found() == ""
    last = max(topic.records)
    whole, topic.records[last] = topic.records[last], topic.records[last][:-3] + b"xyz"
    assert "restore a backup" in found()
    topic.records[last], topic.away = whole, True
    assert "cannot be reached; try again" in found()
