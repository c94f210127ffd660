"""Sonnet over TCP, as its authors demonstrated it (section 4): four physical nodes, and tens of virtual ones."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from tests.systems.end_to_end.test_processes import PACE, Running, settle
from tests.waiting import LAST_RESORT_SECONDS

from tidings import Matcher
from tidings.simulator.workload import feeds

SUBSCRIPTIONS = 40
REPAIR_S = 40 * PACE + 2  # a group that is lost is missed, and made again with those above it


class RunningSonnet(Running):
    def __init__(self, join: str | None) -> None:
        command = [sys.executable, "-m", "tidings", "node", "--system", "sonnet", "--pace", str(PACE)]
        command += ["--join", join] if join else []
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.told: list[dict[str, Any]] = []

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def network(count: int) -> Iterator[list[RunningSonnet]]:
    nodes = [RunningSonnet(None)]
    try:
        first = nodes[0].wait_for(lambda line: "ready" in line)["ready"]
        nodes += [RunningSonnet(first) for _ in range(1, count)]
        for node in nodes:
            node.wait_for(lambda line: "ready" in line)
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def wanted(queries: dict[str, str], documents: dict[str, str]) -> set[tuple[str, str]]:
    """By lxml, and by the matcher, which have to agree."""
    names = list(documents)
    pairs = Matcher(queries, dialect="xpath").match(list(documents.values())).pairs()
    matched = {(str(id), names[number]) for number, id in pairs}
    pool = feeds()
    bodies = dict(zip(pool.documents, pool.events, strict=True))
    assert matched == {
        (id, name)
        for id, text in queries.items()
        for name, document in documents.items()
        if pool.matches(text, bodies[document])
    }
    return matched


@pytest.mark.long
def test_four_processes_deliver_what_lxml_says_also_after_one_is_killed() -> None:
    random, pool = Random("processes"), feeds()
    queries = {f"s{number}": random.choice(pool.filters) for number in range(SUBSCRIPTIONS)}
    with network(4) as nodes:
        owner = {name: nodes[number % 4] for number, name in enumerate(queries)}
        for name, text in queries.items():
            owner[name].wish(subscribe=name, filter=text)
        for name in queries:
            owner[name].wait_for(lambda line, name=name: line.get("active") == name)  # type: ignore[misc]
        before = {f"x{number}": random.choice(pool.documents) for number in range(24)}
        for number, (id, document) in enumerate(before.items()):
            nodes[number % 4].wish(publish=document, id=id)
        goal = wanted(queries, before)
        assert len(goal) > 50
        assert settle(list(nodes), goal) == goal

        victim = nodes[2]
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.process.wait()
        left = [node for node in nodes if node is not victim]
        time.sleep(REPAIR_S)
        after = {f"y{number}": random.choice(pool.documents) for number in range(24)}
        for number, (id, document) in enumerate(after.items()):
            left[number % 3].wish(publish=document, id=id)
        kept = {name: text for name, text in queries.items() if owner[name] is not victim}
        goal = wanted(kept, after)
        found = settle(list(left), goal | wanted(kept, before))
        assert {pair for pair in found if pair[1].startswith("y")} == goal
        lines = [line for node in left for line in node.told]
        assert not [line for line in lines if "error" in line]
        told = [(line["delivered"], line["id"]) for line in lines if "delivered" in line]
        assert len(set(told)) == len(told), "each once"

        nodes[1].process.send_signal(signal.SIGTERM)
        assert nodes[1].process.wait(LAST_RESORT_SECONDS) == 0
