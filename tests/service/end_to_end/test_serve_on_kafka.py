"""The service with its log in a real Kafka: published, matched on Spark, delivered, and its processes killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")
pytest.importorskip("confluent_kafka", reason="pip install 'tidings[kafka]'")

from tidings.client import Client
from tidings.service.data.data_directory import DataDirectory

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def broker(kafka: Any) -> Iterator[Any]:
    with kafka() as ready:
        yield ready


def serves(url: str) -> bool:
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"{url}/v1/health", timeout=5).status == 200)
    return False


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_events_go_through_kafka_and_nothing_is_lost_when_processes_are_killed(
    broker: Any, tmp_path: Path, master: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    data = DataDirectory(tmp_path / "data")
    command = [sys.executable, "-m", "tidings", "serve", "--data", str(data.path), "--port", str(port)]
    command += ["--master", master]
    environment = os.environ | {"TIDINGS_LOG": f"kafka://{broker.address}/events"}
    process = subprocess.Popen(command, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: serves(url))
        until(lambda: (data.read_driver_status() or {}).get("state") == "running")
        with Client(url, token_file=data.token) as client:
            client.put_domain("quotes", {"attributes": [{"name": "price", "type": "double"}]})
            client.subscribe("quotes", "price > 8.30", id="dear")
            published = client.publish_many("quotes", [{"price": 8.0 + n / 100} for n in range(100)])
            dear = [position for n, position in enumerate(published) if n > 30]
            told = pulled(client, "dear", len(dear))
            assert told == dear
            for name in ("gateway", "driver"):
                kill(process.pid, f"tidings.service.{name}")
                until(lambda: serves(url))
                dear.append(client.publish("quotes", {"price": 9.0}))
            assert pulled(client, "dear", len(dear)) == dear
            client.subscribe("quotes", "price > 8.98", id="late", start="earliest")
            assert pulled(client, "late", 3) == [published[99], *dear[-2:]]
        assert json.loads((data.log / "topic.json").read_text())["url"].endswith("/events")
        assert (data.log / "events.sqlite").stat().st_size < 1 << 20
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LAST_RESORT_SECONDS) == 0


def pulled(client: Client, id: str, count: int) -> list[int]:
    """The positions that wait for a subscription, once there are so many."""

    def enough() -> list[int]:
        found = [one.position for one in client.pull(id, limit=1000, wait=5).notifications]
        return found if len(found) >= count else []

    return until(enough)


def kill(ancestor: int, mark: str) -> None:
    """Kill the process below another whose command line has this in it."""
    for line in subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()[1:]:
        pid, parent, command = line.split(None, 2)
        if int(parent) == ancestor and mark in command:
            os.kill(int(pid), signal.SIGKILL)
            return
    raise AssertionError(f"there is no {mark} below {ancestor}")
