"""Real node processes on loopback in random trouble, and a judge of what is left.

A seed gives the schedule: forged frames, events of any size, stalls (SIGSTOP), crashes (SIGKILL), leaving (SIGTERM) and
coming back under the same address. When it is over everybody is started and woken again, and the judge asks that every
node answers, every subscription gets every event published from then on, nothing was ever delivered that does not
match, and no process has grown beyond a bound. `python -m tests.systems.end_to_end.trouble SYSTEM SEED` plays one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.systems.protocols.forging import changed, frames_of
from tests.waiting import LAST_RESORT_SECONDS

from tidings.filter.xpath_dialect import DOMAIN as DOCUMENTS
from tidings.model.domain import dump_domains
from tidings.simulator.workload import DOMAIN, workload_of
from tidings.systems.overlay import MemoryLog, overlay_named
from tidings.systems.protocols.link import MAX_FRAME, split_address
from tidings.systems.protocols.many_domains import node_of
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

PACE = 0.25
LAST_RESORT_S = LAST_RESORT_SECONDS
MAX_GROWN_MIB = 400  # of a process, from when it was ready
LARGE = 400_000  # quotes that an event is padded by: two bytes each as JSON, and four in a frame
SIZES = (10, 1_000, 100_000, LARGE, 520_000, 530_000, 1_100_000, 3_000_000)  # about the limits, and beyond
PLANTED = Path(__file__).parent / "planted"


class Failure(AssertionError):
    """What the judge found, with the command that plays it again."""


class Step(NamedTuple):
    kind: str
    node: int
    seed: int  # of what is random in it


KINDS = ("frame", "frame", "frame", "frame", "drip", "publish", "publish", "large", "stall", "wake", "kill", "back",
         "leave", "back")  # fmt: skip


def schedule(seed: int, nodes: int, steps: int) -> list[Step]:
    random = Random(f"schedule {seed}")
    return [Step(random.choice(KINDS), random.randrange(nodes), random.getrandbits(32)) for _ in range(steps)]


class Process:
    """A `tidings node`, its lines, and what its client has subscribed to."""

    def __init__(self, system: str, folder: Path, address: str, bug: str | None) -> None:
        self.system, self.folder, self.address, self._bug = system, folder, address, bug
        self.filters: dict[str, str] = {}
        self.delivered: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self.log = folder / f"{address}.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._seen: list[dict[str, Any]] = []
        self.ready_mib = 0.0

    @property
    def is_there(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, join: str | None) -> None:
        command = [sys.executable, "-m", "tidings", "node", "--system", self.system, "--pace", str(PACE)]
        command += ["--listen", self.address, "--log", str(self.folder / f"{self.address}.log")]
        if overlay_named(self.system).system.needs == "records":
            command += ["--domain", str(self.folder / "domain.toml")]
        command += ["--join", join] if join else []
        environment = dict(os.environ)
        if self._bug is not None:
            paths = [str(PLANTED), *filter(None, [environment.get("PYTHONPATH")])]
            environment |= {"PYTHONPATH": os.pathsep.join(paths), "TIDINGS_PLANTED": self._bug}
        pipe = subprocess.PIPE
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=environment)
        self._lines, self._seen = queue.Queue(), []
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[bytes], lines: queue.Queue[dict[str, Any]]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed
            for line in process.stdout:
                lines.put(json.loads(line))

    def wish(self, **what: Any) -> None:
        """May block while the process is stopped, so that nothing is wished of one that is."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self) -> None:
        while not self._lines.empty():
            line = self._lines.get()
            if "delivered" in line:
                self.delivered.append((line["delivered"], line["id"]))
            elif "error" in line:
                self.errors.append(line["error"])
            else:
                self._seen.append(line)

    @property
    def is_ready(self) -> bool:
        self.hear()
        return any("ready" in line for line in self._seen)

    def wait_for(self, what: Callable[[dict[str, Any]], bool], why: str) -> None:
        def found() -> bool:
            self.hear()
            return any(what(line) for line in self._seen)

        if not wait_until(found):
            raise Failure(f"{self.address} does not answer: {why}")

    def mib(self) -> float:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    return int(line.split()[1]) / 1024
        return 0.0

    def signal(self, number: int) -> None:
        if self.is_there:
            os.kill(self.pid, number)

    def end(self, number: int) -> int | None:
        if self._process is None:
            return None
        self.signal(signal.SIGCONT)
        self.signal(number)
        status = self._process.wait(LAST_RESORT_S)
        self.hear()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return status


def wait_until(true: Callable[[], bool], seconds: float = LAST_RESORT_S) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.02)
    return False


class Trouble:
    """A network, driven through a schedule."""

    def __init__(self, system: str, seed: int, folder: Path, *, nodes: int = 3, bug: str | None = None) -> None:
        self.system, self.seed, self.folder = system, seed, folder
        self.random = Random(f"trouble {seed}")
        self.pool = workload_of(system)
        (folder / "domain.toml").write_text(dump_domains([DOMAIN]))
        self.nodes = [Process(system, folder, f"127.0.0.1:{port}", bug) for port in free_ports(nodes)]
        self.published: dict[str, str] = {}  # event → its body
        self._forgeries = frames_of(system)
        self._network = network_of(system)
        self._open: list[socket.socket] = []
        self._stopped: set[int] = set()

    # The schedule

    def start(self) -> None:
        self.nodes[0].start(None)
        self._await_ready(self.nodes[0])
        for node in self.nodes[1:]:
            node.start(self.nodes[0].address)
        for number, node in enumerate(self.nodes):
            self._await_ready(node)
            texts = self.random.sample(self.pool.filters, 3)
            node.filters = {f"n{number}-{at}": text for at, text in enumerate(texts)}
            self._subscribe(node)
        for node in self.nodes:
            self._await_active(node)

    def _await_ready(self, node: Process) -> None:
        node.wait_for(lambda line: "ready" in line, "it has not joined")
        node.ready_mib = node.mib()

    def _subscribe(self, node: Process) -> None:
        for name, text in node.filters.items():
            node.wish(subscribe=name, filter=text)

    def _await_active(self, node: Process) -> None:
        for name in node.filters:
            node.wait_for(lambda line, name=name: line.get("active") == name, f"{name} is not in place")  # type: ignore[misc]

    def play(self, steps: list[Step]) -> None:
        for step in steps:
            self._do(step)
            time.sleep(Random(step.seed).random() * 0.3 * PACE)  # so that steps fall into any moment of a period

    def _do(self, step: Step) -> None:
        node, random = self.nodes[step.node], Random(step.seed)
        alone = not any(one is not node for one in self._members())
        match step.kind:
            case "frame" if node.is_there:
                self._throw(node, self._forged(random))
            case "drip" if node.is_there and len(self._open) < 32:
                self._throw(node, struct.pack(">I", 100_000) + b"x" * random.randrange(1_000), keep=True)
            case "publish" | "large" if self._takes_requests(step.node):
                self._publish(node, random, random.choice(SIZES) if step.kind == "large" else 0)
            case "stall" if self._takes_requests(step.node) and not alone:
                node.signal(signal.SIGSTOP)
                self._stopped.add(step.node)
            case "wake" if step.node in self._stopped:
                self._wake(step.node)
            case "kill" | "leave" if self._takes_requests(step.node) and not alone:
                leaves = step.kind == "leave" and node.is_ready  # before that it may not even have begun
                status = node.end(signal.SIGTERM if leaves else signal.SIGKILL)
                if leaves and status != 0:
                    raise Failure(f"{node.address} was asked to leave, and ended with {status}")
            case "back" if not node.is_there:
                self._back(node, random)

    def _members(self) -> list[Process]:
        """Who can let others in. One is left at any time: those that only try to join would wait for each other."""
        return [node for at, node in enumerate(self.nodes) if self._takes_requests(at) and node.is_ready]

    def _takes_requests(self, number: int) -> bool:
        return self.nodes[number].is_there and number not in self._stopped

    def _wake(self, number: int) -> None:
        self.nodes[number].signal(signal.SIGCONT)
        self._stopped.discard(number)

    def _back(self, node: Process, random: Random) -> None:
        node.start(random.choice(self._members()).address)
        self._subscribe(node)

    def _publish(self, node: Process, random: Random, padding: int) -> None:
        body = random.choice(self.pool.events)
        id = f"e{len(self.published)}"
        record = json.loads(body)
        if padding and isinstance(record, dict):
            record["padding"] = '"' * padding
        elif padding:
            record += "<!--" + '"' * padding + "-->"
        self.published[id] = body
        node.wish(publish=record, id=id)

    def _forged(self, random: Random) -> bytes:
        peer = f"127.0.0.1:{random.randrange(1, 1_000)}"
        id = hashed(peer, ADDRESS_BITS)
        message = {"InDomain": [self._network, random.choice(self._forgeries)]}
        frame = {"from": id, "book": {str(id): peer}, "message": message}
        match random.randrange(8):
            case 0:
                return random.randbytes(random.randrange(1, 5_000))
            case 1:
                return struct.pack(">I", random.randrange(MAX_FRAME, 1 << 32)) + b"{" * 1_000
            case 2:
                body = json.dumps(frame).encode()
                return struct.pack(">I", len(body)) + body[: random.randrange(len(body))]
            case 3:
                body = json.dumps(changed(random, frame)).encode()
            case _:
                message["InDomain"][1] = changed(random, message["InDomain"][1])
                body = json.dumps(frame).encode()
        return struct.pack(">I", len(body)) + body

    def _throw(self, node: Process, frame: bytes, *, keep: bool = False) -> None:
        """Send bytes to a node, which may be stopped: without waiting for it."""
        with contextlib.suppress(OSError):
            to = socket.create_connection(split_address(node.address), timeout=1)
            to.settimeout(0.2)
            to.send(frame)
            if keep:
                self._open.append(to)
            else:
                to.close()

    # The judge

    def judge(self) -> int:
        """Returns how many events were published once all had settled, and reached everybody; raises Failure."""
        for number in list(self._stopped):
            self._wake(number)
        for node in self.nodes:
            if not node.is_there:
                self._back(node, self.random)
        for node in self.nodes:
            self._await_ready(node)
            self._await_active(node)
            node.wish(status=True)
            node.wait_for(lambda line: "status" in line, "it was asked for its status")
        self._settle()
        last = [self._publish_one(node, padding) for padding in (LARGE, 0, 0, 0) for node in self.nodes]
        if not self._wanted(last):
            raise Failure(f"none of {len(last)} events had to be delivered: nothing was judged")
        if not wait_until(lambda: not self._lacking(last)):
            raise Failure(f"not delivered after all had settled: {sorted(self._lacking(last))}")
        self._judge_past()
        return len(last)

    def _settle(self) -> None:
        """Until two rounds of events in a row have reached everybody."""
        until, rounds = time.monotonic() + LAST_RESORT_S, 0
        lacking: set[tuple[str, str]] = set()
        while rounds < 2:
            if time.monotonic() > until:
                raise Failure(f"the network does not settle: {sorted(lacking)} are not delivered")
            probes = [self._publish_one(node) for node in self.nodes]
            wait_until(lambda probes=probes: not self._lacking(probes), 8 * PACE + 2)  # type: ignore[misc]
            lacking = self._lacking(probes)
            rounds = 0 if lacking else rounds + 1

    def _publish_one(self, node: Process, padding: int = 0) -> str:
        self._publish(node, self.random, padding)
        return f"e{len(self.published) - 1}"

    def _wanted(self, ids: list[str]) -> set[tuple[str, str]]:
        return {
            (name, id)
            for node in self.nodes
            for name, text in node.filters.items()
            for id in ids
            if self.pool.matches(text, self.published[id])
        }

    def _lacking(self, ids: list[str]) -> set[tuple[str, str]]:
        for node in self.nodes:
            node.hear()
        return self._wanted(ids) - {pair for node in self.nodes for pair in node.delivered}

    def _judge_past(self) -> None:
        wanted = self._wanted(list(self.published))
        for node in self.nodes:
            node.hear()
            wrong = {pair for pair in node.delivered if pair[0] not in node.filters} | (set(node.delivered) - wanted)
            if wrong:
                raise Failure(f"{node.address} delivered what nobody there asked for: {sorted(wrong)}")
            if any("are the most" not in error and "a request has more than" not in error for error in node.errors):
                raise Failure(f"{node.address} refused what is not too large: {node.errors}")
            if node.mib() > node.ready_mib + MAX_GROWN_MIB:
                raise Failure(f"{node.address} has grown from {node.ready_mib:.0f} to {node.mib():.0f} MiB")
            said = node.log.read_text(errors="replace")
            if "Traceback" in said:
                raise Failure(f"{node.address} failed: {said[-2_000:]}")

    def close(self) -> None:
        for node in self.nodes:
            node.end(signal.SIGKILL)
        for opened in self._open:
            opened.close()


def network_of(system: str) -> str:
    """What nodes of a system call the network of the domain that they are given here."""
    domain = DOCUMENTS if overlay_named(system).system.needs == "documents" else DOMAIN
    (network,) = node_of(overlay_named(system), 1, [domain], Random(1), lambda _: MemoryLog()).networks.values()
    return network


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; they are let go together, so that no two are the same."""
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in taken]


@contextlib.contextmanager
def trouble(system: str, seed: int, **options: Any) -> Iterator[Trouble]:
    with tempfile.TemporaryDirectory() as folder:
        made = Trouble(system, seed, Path(folder), **options)
        try:
            yield made
        except Failure as failure:
            logs = "\n".join(node.log.read_text(errors="replace")[-800:] for node in made.nodes if node.log.exists())
            command = f"python -m tests.systems.end_to_end.trouble {system} {seed}"
            raise Failure(f"{failure}\n{command}\n{logs}") from None
        finally:
            made.close()


def play(system: str, seed: int, *, nodes: int = 3, steps: int = 60, bug: str | None = None) -> int:
    """Plays the schedule of this seed and returns what `judge` does; raises Failure."""
    with trouble(system, seed, nodes=nodes, bug=bug) as network:
        network.start()
        network.play(schedule(seed, nodes, steps))
        return network.judge()


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]), bug=sys.argv[3] if len(sys.argv) > 3 else None)
    print("nothing found")
