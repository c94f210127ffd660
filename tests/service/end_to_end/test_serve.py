"""`tidings serve`: what it tells whoever starts it, and the whole of it once, from the outside."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings import extras
from tidings.commands import serve
from tidings.errors import TidingsError
from tidings.service import supervisor
from tidings.service.data.data_directory import DataDirectory
from tidings.service.supervisor import ServicePlan


def test_the_commands_to_try_name_what_is_not_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    usual = serve.try_next(ServicePlan(DataDirectory("tidings-data")), demo=False)
    assert len(usual) == 3
    assert all("--url" not in line and "--token-file" not in line for line in usual)
    other = serve.try_next(ServicePlan(DataDirectory(tmp_path / "else where"), port=8123), demo=True)
    assert "--url http://127.0.0.1:8123 --token-file './else where/token'" in other[0]


def test_what_is_missing_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(TidingsError, match=r"this needs pyspark: pip install 'tidings\[spark\]'"):
        serve.serve(data=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_it_tells_where_it_is_and_where_the_token_is_and_never_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")

    def at_once(self: Any, on_ready: Callable[[], None], *, ending: Callable[[], None]) -> None:
        on_ready()
        ending()

    monkeypatch.setattr(supervisor.Supervisor, "run", at_once)
    serve.run(ServicePlan(DataDirectory(tmp_path / "data"), port=8123), Console(width=60))
    told = capsys.readouterr().out
    assert "http://127.0.0.1:8123" in told
    assert str(tmp_path / "data" / "token") in told
    assert (tmp_path / "data" / "token").read_text().strip() not in told
    assert all(
        command in told.splitlines()
        for command in serve.try_next(ServicePlan(DataDirectory(tmp_path / "data"), port=8123), demo=False)
    )


@pytest.mark.spark
@pytest.mark.long
def test_a_service_is_started_used_hurt_and_stopped(tmp_path: Path) -> None:
    """Real processes: published over HTTP, matched on Spark, delivered; the driver killed in between; Ctrl-C."""
    pytest.importorskip("tidings.service.gateway.gateway_process")
    from tidings.client import Client

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    data = DataDirectory(tmp_path / "data")
    program = "from tidings.commands import serve\nfrom pathlib import Path\n"
    program += f"serve.serve(port={port}, data=Path({str(data.path)!r}), master='local[2]')"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready"):
                ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(LAST_RESORT_SECONDS), "".join(lines)
        with Client(f"http://127.0.0.1:{port}", token_file=data.token) as client:
            client.put_domain("quotes", {"attributes": [{"name": "price", "type": "double"}]})
            made = client.subscribe("quotes", "price > 8.30", id="dear")
            position = client.publish("quotes", {"price": 8.40})
            client.publish("quotes", {"price": 8.20})
            (first,) = client.pull(made.id, wait=60).notifications
            assert first.position == position
            status = json.loads(data.driver_status.read_text())
            os.kill(status["pid"], signal.SIGKILL)
            after = client.publish("quotes", {"price": 8.50})
            until(lambda: [one.position for one in client.pull(made.id, wait=5).notifications] == [position, after])
        process.send_signal(signal.SIGINT)
        assert process.wait(LAST_RESORT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    reader.join(LAST_RESORT_SECONDS)
    assert re.search(r"^stopped; everything is kept in ", "".join(lines), re.MULTILINE)
    assert json.loads(data.driver_status.read_text())["state"] == "stopped"
    with socket.create_server(("127.0.0.1", port)):
        pass  # nobody has it any more
