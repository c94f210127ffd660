"""A log in a real Kafka: what is acknowledged is there, in order, for all who read, and after every restart."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

pytest.importorskip("confluent_kafka", reason="pip install 'tidings[kafka]'")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidings.model.event import read_events
from tidings.store.log import kafka_topic as log_kafka
from tidings.store.log.log_errors import LogBusyError, LogError, LogRangeError, LogUnknownError
from tidings.store.log.log_in_topic import open_log
from tidings.store.log.log_reader import LogReader
from tidings.store.log.topic_pages import fetched, topic_at

from ..log_events import STOCKS, cloud, events_of, stock

pytestmark = pytest.mark.long


@pytest.fixture
def url(broker: Any, request: pytest.FixtureRequest) -> str:
    return f"kafka://{broker.address}/{request.node.name[:80].replace('[', '-').strip(']')}"


def test_other_processes_read_appended_events_and_restarts_continue(tmp_path: Path, url: str) -> None:
    with open_log(tmp_path, url) as log:
        assert log.append([{"n": 0}, {"n": 1}], domain="a") == [0, 1]
        assert log.append(read_events([stock(k) for k in range(1000)], STOCKS)) == list(range(2, 1002))
        program = (
            f"from tidings.store.log.log_reader import LogReader; print(LogReader({str(tmp_path)!r}).event(1001).event)"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert "'symbol': 'S999'" in said
    assert stat.S_IMODE((tmp_path / "topic.json").stat().st_mode) == 0o600
    with LogReader(tmp_path) as reader:
        assert events_of(reader, domain="a") == [(0, "a", {"n": 0}), (1, "a", {"n": 1})]
        placed = reader.placed(2, 1002, domain=STOCKS.name)
        topic = topic_at(url)
        assert sum(page.count for page in fetched(topic, placed)) == 1000
        topic.close()
    shutil.rmtree(tmp_path)
    with open_log(tmp_path, url) as log:  # the topic alone is enough
        assert log.append([{"n": 2}], domain="a") == [1002]
        assert [position for position, _, _ in events_of(log, domain="a")] == [0, 1, 1002]


def test_publishers_at_the_same_time_each_keep_their_order(tmp_path: Path, url: str) -> None:
    answered: dict[int, list[int]] = {}

    def publish(who: int) -> None:
        answered[who] = [log.append([cloud(f"/{who}", str(n), {"n": n})], domain="a")[0] for n in range(100)]

    with open_log(tmp_path, url) as log:
        threads = [threading.Thread(target=publish, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        there = {position: (event["source"], event["data"]["n"]) for position, _, event in events_of(log)}
    assert sorted(there) == list(range(400))
    for who, positions in answered.items():
        assert positions == sorted(positions)
        assert [there[position] for position in positions] == [(f"/{who}", n) for n in range(100)]


WRITER = """
import sys
from tidings.store.log.log_in_topic import open_log
with open_log(sys.argv[1], sys.argv[2]) as log:
    for n in range(10**9):
        event = {"specversion": "1.0", "source": "/w", "id": str(n), "type": "t", "data": {"n": n}}
        print(log.append([event], domain="a")[0], flush=True)
"""


def test_acknowledged_events_survive_a_killed_writer(tmp_path: Path, url: str) -> None:
    acknowledged: list[int] = []
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), url], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        start = len(acknowledged)
        for line in writer.stdout:
            acknowledged.append(int(line))
            if len(acknowledged) >= start + 200:
                break
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.wait()
    with open_log(tmp_path, url) as log:
        there = {position: int(event["id"]) for position, _, event in events_of(log)}
        assert sorted(there) == list(range(log.end))
    assert len(set(there.values())) == len(there), "an event is there twice"
    assert set(acknowledged) <= set(there)


def test_a_hanging_broker_is_reported_and_appends_continue_after_it(
    broker: Any, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_kafka, "RESPONSE_SECONDS", 2.0)
    with open_log(tmp_path, url) as log:
        log.append([cloud("/s", "0")], domain="a")
        os.kill(broker.process_id, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises((LogUnknownError, LogBusyError)):
                    log.append([cloud("/s", "1")], domain="a")
            assert log.end == 1
        finally:
            os.kill(broker.process_id, signal.SIGCONT)

        def appended() -> list[int]:
            with suppress(LogUnknownError, LogBusyError):
                return log.append([cloud("/s", "1")], domain="a")
            return []

        assert until(appended) == [1]
        assert [event["id"] for _, _, event in events_of(log)] == ["0", "1"]


def test_retention_removes_events_from_the_topic_too(tmp_path: Path, url: str) -> None:
    with open_log(tmp_path, url) as log:
        for n in range(5):
            log.append([{"n": n}], domain="a")
        assert log.retain(from_position=3) == 3
        with pytest.raises(LogRangeError, match="removed by retention"):
            events_of(log, 0)
        topic = topic_at(url)
        assert topic.bounds()[0] > 0
        with pytest.raises(LogRangeError, match="has removed all before"):
            topic.read([0])
        topic.close()
    shutil.rmtree(tmp_path)
    with open_log(tmp_path, url) as log:
        assert (log.start, log.end) == (3, 5)


def test_a_topic_that_cannot_be_a_log_is_refused(broker: Any, tmp_path: Path, url: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    name = url.rpartition("/")[2]
    for new in (NewTopic(f"{name}-parts", 2, 1), NewTopic(f"{name}-small", 1, 1)):
        for done in admin.create_topics([new]).values():
            done.result()
    with pytest.raises(LogError, match="has 2 partitions, and a log is one order of events"):
        open_log(tmp_path / "parts", f"{url}-parts")
    with pytest.raises(LogError, match=r"set its max\.message\.bytes to"):
        open_log(tmp_path / "small", f"{url}-small")


def test_records_of_others_are_passed_over(broker: Any, tmp_path: Path, url: str) -> None:
    with open_log(tmp_path, url) as log:
        log.append([{"n": 0}], domain="a")
        stranger = Producer({"bootstrap.servers": broker.address})
        stranger.produce(url.rpartition("/")[2], b"of a stranger", partition=0)
        stranger.flush(10)
        with pytest.raises(LogBusyError, match="another process has written"):
            log.append([{"n": 1}], domain="a")
        assert log.append([{"n": 2}], domain="a") == [1]
        assert [event["n"] for _, _, event in events_of(log)] == [0, 2]


def test_a_kafka_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_kafka, "RESPONSE_SECONDS", 1.0)
    with pytest.raises(LogBusyError, match=r"nothing of Kafka at 127\.0\.0\.1:1 cannot be reached"):
        open_log(tmp_path, "kafka://127.0.0.1:1/nothing")
