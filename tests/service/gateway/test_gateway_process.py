"""The gateway as a process: it starts with nothing, ends when asked to, and loses nothing that it has answered."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway.gateway_process import main
from tidings.store.log.log_files import Acknowledged
from tidings.store.log.log_writer import Log


class Process:
    """`python -m tidings.service.gateway.gateway_process`, reached by its port."""

    def __init__(self, data: Path) -> None:
        self.data = data
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._start()

    def _start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tidings.service.gateway.gateway_process",
            str(self.data),
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        until(self._listens)
        token = (self.data / "token").read_text().strip()
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=LAST_RESORT_SECONDS,
        )

    def _listens(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), LAST_RESORT_SECONDS).close()
            return True
        return False

    def end(self, number: int) -> int:
        self.client.close()
        self.process.send_signal(number)
        status = self.process.wait(LAST_RESORT_SECONDS)
        assert self.process.stderr is not None
        self.said = self.process.stderr.read().decode()
        self.process.stderr.close()
        return status

    def again(self) -> None:
        self._start()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    running = Process(tmp_path / "data")
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


def publish(process: Process, number: int) -> Any:
    return process.client.post("/v1/domains/stocks/events", json={"number": number}).json()["positions"]


@contextmanager
def signals_kept() -> Iterator[None]:
    """A gateway takes signals for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_uploads_that_stall_do_not_hold_up_an_orderly_end(process: Process) -> None:
    token = (process.data / "token").read_text().strip()
    head = f"POST /v1/domains/stocks/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    stalled = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(3)]
    for one in stalled:
        one.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode())
    under_way = re.compile(r'tidings_tenant_used\{quota="uploading_bytes".*\} 3\b')
    until(lambda: under_way.search(process.client.get("/metrics").text))
    assert process.end(signal.SIGTERM) == 0
    assert "Traceback" not in process.said  # as requests leave that are cancelled after ten seconds
    for one in stalled:
        one.close()


def test_what_was_answered_survives_a_kill_and_an_orderly_end_ends_streams(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [publish(process, number) for number in range(5)] == [[0], [1], [2], [3], [4]]
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    process.again()
    assert [process.client.get(f"/v1/events/{number}/matches").json()["event"] for number in range(5)] == [
        {"number": number} for number in range(5)
    ]
    assert publish(process, 5) == [5]
    made = process.client.post("/v1/subscriptions", json={"domain": "stocks", "filter": "TRUE"}).json()["id"]
    with signals_kept(), pytest.raises(SystemExit) as second:
        main([str(process.data), "--port", "0"])
    assert second.value.code
    assert "one writer" in capsys.readouterr().err
    ended = threading.Event()

    def read() -> None:
        with process.client.stream("GET", f"/v1/subscriptions/{made}/stream") as answer:
            opened.set()
            for _ in answer.iter_bytes():
                pass
        ended.set()

    opened = threading.Event()
    threading.Thread(target=read, daemon=True).start()
    assert opened.wait(LAST_RESORT_SECONDS)
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(LAST_RESORT_SECONDS) == 0
    assert ended.wait(LAST_RESORT_SECONDS)


def test_a_gateway_that_cannot_start_says_why_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where the end of its log is lost."""
    DataDirectory(tmp_path).make()
    with Log(tmp_path / "log") as log:
        log.append([{"number": 1}], domain="default.stocks")
    acknowledged = Acknowledged(tmp_path / "log", write=True)
    acknowledged.write(9)
    acknowledged.close()
    with signals_kept(), pytest.raises(SystemExit):
        main([str(tmp_path), "--port", "0"])
    said = capsys.readouterr().err
    assert "was acknowledged up to position 8, and ends at 0" in said
    assert "Traceback" not in said
