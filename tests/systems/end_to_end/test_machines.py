"""The manual's network of several machines, each of them an address of the loopback interface."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.model.domain import Attribute, Domain, dump_domains

MANUAL = Path(__file__).parents[3] / "docs" / "overlays.md"
STOCKS = Domain(
    "stocks",
    [
        Attribute("symbol", "string", allowed=["OTE", "ALPHA"]),
        Attribute("price", "double", min=0.0, max=20.0, precision=0.01),
    ],
)
PACE = "0.1"
COMMAND = [sys.executable, "-m", "tidings"]


class Machine:
    """A node on a machine, what it writes, and what it complains of."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*COMMAND, *arguments, "--pace", PACE],
            cwd=folder,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            bufsize=1,
        )
        self.told: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(
                target=self._read, args=(self.process.stdout, lambda line: self.told.append(json.loads(line)))
            ),
            threading.Thread(target=self._read, args=(self.process.stderr, self.complaints.append)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, take: Any) -> None:
        with stream:
            for line in stream:
                take(line)

    def wish(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")

    def wait_for(self, **what: Any) -> None:
        until(lambda: any(what.items() <= line.items() for line in self.told) or self.process.poll() is not None)
        assert any(what.items() <= line.items() for line in self.told), f"{what} was not told: {self.complaints}"

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(LAST_RESORT_SECONDS)
        for reader in self._readers:
            reader.join()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return status


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("0.0.0.0", 0))
        return int(found.getsockname()[1])


def commands_of_the_manual() -> dict[str, str]:
    """The command of each machine, on loopback, on ports that are free."""
    text = MANUAL.read_text(encoding="utf-8")
    text = text[text.index("### Several machines") :]
    (common,) = re.findall(r'NODE="tidings ([^"]+)"', text)
    ports = {"7000": str(free_port()), "7001": str(free_port())}
    found = {}
    for machine, command in re.findall(r"^    10\.0\.0\.(\d)\$ \$NODE (.+)$", text, re.MULTILINE):
        local = command.replace("10.0.0.", "127.0.0.")
        found[f"127.0.0.{machine}"] = f"{common} " + re.sub(":(700.)", lambda port: ":" + ports[port[1]], local)
    return found


@contextmanager
def network(folder: Path) -> Iterator[dict[str, Machine]]:
    (folder / "stocks.toml").write_text(dump_domains([STOCKS]))
    (folder / "secret").write_text(os.urandom(32).hex())
    (folder / "secret").chmod(0o600)
    machines: dict[str, Machine] = {}
    try:
        for host, command in commands_of_the_manual().items():
            machines[host] = Machine(folder, shlex.split(command))
            if len(machines) <= 2:  # which others join
                until(lambda: any("ready" in line for line in machines[host].told))  # noqa: B023
        yield machines
    finally:
        for machine in machines.values():
            machine.end(signal.SIGKILL)


def delivers(publisher: Machine, subscriber: Machine, name: str, ids: Iterator[str]) -> None:
    """An event that one machine publishes is delivered on another, soon if not the first."""
    published: list[str] = []

    def arrived() -> bool:
        if any(line.get("delivered") == name and line["id"] in published for line in subscriber.told):
            return True
        published.append(next(ids))
        publisher.wish(publish={"symbol": "OTE", "price": 8.40}, id=published[-1])
        return False

    until(arrived)


def test_the_network_of_the_manual_delivers_and_its_nodes_leave_in_order(tmp_path: Path) -> None:
    assert list(commands_of_the_manual()) == [f"127.0.0.{machine}" for machine in range(2, 10)]
    ids = (f"e{number}" for number in range(1_000_000))
    with network(tmp_path) as machines:
        for host, machine in machines.items():
            until(lambda: any("ready" in line for line in machine.told))  # noqa: B023
            (ready,) = [line["ready"] for line in machine.told if "ready" in line]
            assert ready.startswith(f"{host}:")
        subscriber = machines["127.0.0.9"]
        subscriber.wish(subscribe="dear", filter="price > 8.30")
        subscriber.wait_for(active="dear")
        for host in ("127.0.0.4", "127.0.0.2"):
            delivers(machines[host], subscriber, "dear", ids)
        for host in ("127.0.0.2", "127.0.0.3", "127.0.0.7"):
            assert machines[host].end(signal.SIGTERM) == 0, machines[host].complaints
            delivers(machines["127.0.0.4"], subscriber, "dear", ids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_cannot_join_leaves_when_it_is_asked_to(tmp_path: Path, number: int) -> None:
    (tmp_path / "stocks.toml").write_text(dump_domains([STOCKS]))
    nobody = f"127.0.0.2:{free_port()}"
    node = Machine(tmp_path, ["node", "--system", "opchord", "--domain", "stocks.toml", "--join", nobody])
    try:
        until(lambda: any(f"{nobody} has not let this node join yet" in line for line in node.complaints))
    finally:
        assert node.end(number) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--listen", "0.0.0.0:0", "--advertise", "127.0.0.2:0"], "give every node the same --secret-file"),
        (["--listen", "0.0.0.0:0", "--secret-file", "secret"], "--advertise HOST:PORT"),
        (["--secret-file", "nowhere"], "make one, the same for every node"),
        (["--secret-file", "stocks.toml"], "chmod 600 stocks.toml"),
        (["--advertise", "here"], "write host:port"),
        (["--listen", "192.0.2.1:0", "--secret-file", "secret"], "cannot listen at 192.0.2.1, port 0: "),
    ],
)
def test_a_node_that_could_not_be_found_or_trusted_does_not_start(
    tmp_path: Path, arguments: list[str], error: str
) -> None:
    (tmp_path / "stocks.toml").write_text(dump_domains([STOCKS]))
    (tmp_path / "stocks.toml").chmod(0o644)
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    node = Machine(tmp_path, ["node", "--system", "opchord", "--domain", "stocks.toml", *arguments])
    try:
        until(lambda: node.process.poll() is not None or node.told)
    finally:
        status = node.end(signal.SIGKILL)
    assert status == 1
    (line,) = node.complaints
    assert error in line
