"""The same nodes over TCP: in one process each, on the loopback interface."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.model.domain import Domain, dump_domains
from tidings.simulator.workload import DOMAIN
from tidings.systems.overlay import overlays
from tidings.testing.oracle import brute_force

SYSTEMS = [name for name, one in overlays().items() if one.system.needs == "records" and not one.variant]

FILTERS = {
    "a": "symbol = 'ALPHA'",
    "b": "price >= 20.0 AND price < 60.0 AND volume < 800",
    "c": "rating IN (2, 5) OR price > 80.0",
    "d": "symbol = 'BETA' AND price > 10.0",
    "e": "volume > price * 10",
    "f": "rating IS NULL",
}
PACE = 0.25
REPAIR_S = 24 * PACE + 2  # the protocols need seconds of their own time, and processes are slow to start


class Running:
    """A `tidings node` and its lines."""

    def __init__(self, system: str, domain: Path, join: str | None, log: Path) -> None:
        command = [sys.executable, "-m", "tidings", "node", "--system", system, "--domain", str(domain)]
        command += ["--pace", str(PACE), "--log", str(log)] + (["--join", join] if join else [])
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.told: list[dict[str, Any]] = []

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def wish(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def wait_for(self, found: Callable[[dict[str, Any]], bool], seconds: float = LAST_RESORT_SECONDS) -> dict[str, Any]:
        until = time.monotonic() + seconds
        for line in self.told:
            if found(line):
                return line
        while True:
            line = self._lines.get(timeout=max(0.01, until - time.monotonic()))
            self.told.append(line)
            if found(line):
                return line

    def drain(self) -> None:
        while not self._lines.empty():
            self.told.append(self._lines.get())

    def delivered(self) -> set[tuple[str, str]]:
        self.drain()
        return {(line["delivered"], line["id"]) for line in self.told if "delivered" in line}


@contextmanager
def network(system: str, folder: Path, count: int = 4) -> Iterator[list[Running]]:
    domain = folder / "domain.toml"
    domain.write_text(dump_domains([DOMAIN]))
    nodes: list[Running] = []
    try:
        nodes.append(Running(system, domain, None, folder / "0.log"))
        first = nodes[0].wait_for(lambda line: "ready" in line)["ready"]
        nodes += [Running(system, domain, first, folder / f"{n}.log") for n in range(1, count)]
        for node in nodes:
            node.wait_for(lambda line: "ready" in line)
        time.sleep(REPAIR_S)  # all of them joined at once
        yield nodes
    finally:
        for node in nodes:
            node.process.kill()
            node.process.wait()
            for stream in (node.process.stdin, node.process.stdout):
                if stream is not None:
                    stream.close()


def events(random: Random, prefix: str, count: int) -> dict[str, dict[str, Any]]:
    return {
        f"{prefix}{number}": {
            "symbol": random.choice(["ALPHA", "BETA", "GAMMA"]),
            "price": random.randint(0, 200) / 2,
            "volume": random.randint(0, 1000),
            "rating": random.choice([None, *range(10)]),
        }
        for number in range(count)
    }


def wanted(filters: dict[str, str], published: dict[str, dict[str, Any]], domain: Domain = DOMAIN) -> set[Any]:
    names = list(published)
    return {(id, names[event]) for event, id in brute_force(filters, list(published.values()), domain)}


def settle(
    nodes: list[Running], goal: set[tuple[str, str]], seconds: float = LAST_RESORT_SECONDS
) -> set[tuple[str, str]]:
    """What was delivered, when it is what is wanted or time is up; a little later, for what should not come."""
    until = time.monotonic() + seconds
    found: set[tuple[str, str]] = set()
    while time.monotonic() < until:
        found = {pair for node in nodes for pair in node.delivered()}
        if found >= goal:
            time.sleep(0.3)
            return {pair for node in nodes for pair in node.delivered()}
        time.sleep(0.1)
    return found


@pytest.mark.long
def test_a_dispatcher_that_was_killed_sends_what_is_in_its_log_when_it_is_started_again(tmp_path: Path) -> None:
    with network("bluedove", tmp_path, 3) as nodes:
        dispatcher, subscriber = nodes[2], nodes[1]
        subscriber.wish(subscribe="all", filter="price >= 0.0")
        subscriber.wait_for(lambda line: line.get("active") == "all")
        os.kill(subscriber.process.pid, signal.SIGSTOP)  # it cannot be told, so that nothing is done
        published = events(Random(7), "z", 12)
        for id, event in published.items():
            dispatcher.wish(publish=event, id=id)
        log = tmp_path / "2.log"
        until(lambda: sum("publish" in line for line in log.read_text().splitlines()) == 12)
        os.kill(dispatcher.process.pid, signal.SIGKILL)
        dispatcher.process.wait()
        os.kill(subscriber.process.pid, signal.SIGCONT)
        first = next(line["ready"] for line in nodes[0].told if "ready" in line)
        nodes[2] = again = Running("bluedove", tmp_path / "domain.toml", first, log)
        again.wait_for(lambda line: "ready" in line)
        goal = wanted({"all": "price >= 0.0"}, published)
        assert settle([subscriber], goal) == goal


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_four_processes_deliver_what_the_oracle_says_also_after_one_is_killed(system: str, tmp_path: Path) -> None:
    random = Random(system)
    with network(system, tmp_path) as nodes:
        owner = {name: nodes[number % 4] for number, name in enumerate(FILTERS)}
        for name, text in FILTERS.items():
            owner[name].wish(subscribe=name, filter=text)
        for name in FILTERS:
            owner[name].wait_for(lambda line, name=name: line.get("active") == name)  # type: ignore[misc]
        before = events(random, "x", 24)
        for number, (id, event) in enumerate(before.items()):
            nodes[number % 4].wish(publish=event, id=id)
        goal = wanted(FILTERS, before)
        assert settle(nodes, goal) == goal

        victim = nodes[2]
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.process.wait()
        left = [node for node in nodes if node is not victim]
        time.sleep(REPAIR_S)
        after = events(random, "y", 24)
        for number, (id, event) in enumerate(after.items()):
            left[number % 3].wish(publish=event, id=id)
        filters = {name: text for name, text in FILTERS.items() if owner[name] is not victim}
        goal = wanted(filters, after)
        found = {pair for pair in settle(left, goal | wanted(filters, before)) if pair[1].startswith("y")}
        assert found == goal
        assert not [line for node in left for line in node.told if "error" in line]

        nodes[1].process.send_signal(signal.SIGTERM)
        assert nodes[1].process.wait(LAST_RESORT_SECONDS) == 0
