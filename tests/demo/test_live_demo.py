"""The live demo delivers to those who stay exactly what the matcher says, while other subscriptions come and go."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings import Client, Matcher
from tidings.client import Retries
from tidings.demo.flights import load_flights
from tidings.demo.live_demo import LiveDemo, id_of
from tidings.model.infer import infer_domain

from ..client.fake_service import TOKEN, FakeService


def test_the_demo_subscribes_publishes_changes_and_shows_what_arrives() -> None:
    service, written = FakeService(), io.StringIO()
    client = Client(token=TOKEN, transport=service.transport())
    demo = LiveDemo(client, Console(file=written, width=160), subscribers=30)
    demo.start()
    try:
        progress = demo.progress
        until(lambda: progress.changed > 1 and len(progress.received) > 3 and all(progress.received.values()))
    finally:
        demo.stop()
    assert progress.problem is None
    assert progress.subscribed == 30
    assert len(service.subscriptions) in (29, 30), "one may be between its deletion and its return"
    assert "flights published against 30 subscriptions" in written.getvalue()
    assert all(id_of(one) in written.getvalue() for one in progress.shown)


@pytest.mark.spark
@pytest.mark.long
def test_those_who_stay_receive_exactly_what_the_matcher_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "tidings", "serve", "--data", str(tmp_path), "--port", str(port)]
    with subprocess.Popen([*command, "--master", "local[2]"], stdout=subprocess.DEVNULL) as process:
        try:
            until((tmp_path / "token").exists)
            retries = Retries(for_seconds=LAST_RESORT_SECONDS)
            client = Client(f"http://127.0.0.1:{port}", token_file=tmp_path / "token", retries=retries)
            demo = LiveDemo(client, Console(file=io.StringIO()), subscribers=300)
            demo.start()
            wanted = rows_wanted(demo)
            received = demo.progress.received
            early = {id_: sum(row < 3_000 for row in rows) for id_, rows in wanted.items()}
            until(lambda: all(len(received.get(id_, ())) >= count for id_, count in early.items()))
            demo.stop()
        finally:
            process.terminate()
    assert demo.progress.problem is None
    assert demo.progress.changed > 0
    for id_, positions in received.items():
        assert positions == [demo.progress.positions[row] for row in wanted[id_][: len(positions)]]


def rows_wanted(demo: LiveDemo) -> dict[str, list[int]]:
    """The rows of the flights that each shown subscription matches, by its id."""
    flights = load_flights()
    wanted: dict[str, list[int]] = {id_of(one): [] for one in demo.progress.shown}
    matcher = Matcher([(id_of(one), one.filter) for one in demo.progress.shown], infer_domain(flights, name="flights"))
    for row, id_ in matcher.match(flights).pairs():
        wanted[str(id_)].append(row)
    return wanted
