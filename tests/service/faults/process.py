"""`tidings serve` as its user starts it: its processes by id, its files, its memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.waiting import LAST_RESORT_SECONDS, until

COMMAND = [sys.executable, "-m", "tidings", "serve"]
READY_SECONDS = STOP_SECONDS = LAST_RESORT_SECONDS
POINTS = Path(__file__).parent / "points"


class NotStartedError(RuntimeError):
    """The service ended, or did not become ready; the message has the end of what it said."""


class Served:
    """A service in processes of its own, with its data in a directory that outlives them."""

    def __init__(
        self, data: Path, *, master: str = "local[2]", options: Sequence[str] = (), hooks: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = data.with_name(f"{data.name}.log")
        self.points = data.with_name(f"{data.name}.points")
        self.master, self._options = master, options
        self._hooks, self._environment = hooks, environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def token_file(self) -> Path:
        return self.data / "token"

    @property
    def environment(self) -> dict[str, str]:
        """Of processes that are to be held at points."""
        path = os.pathsep.join(filter(None, (str(POINTS), os.environ.get("PYTHONPATH"))))
        hooks = os.pathsep.join(map(str, self._hooks))
        return {
            "PYTHONPATH": path,
            "TIDINGS_FAULT_POINTS": str(self.points),
            "TIDINGS_FAULT_HOOKS": hooks,
            **self._environment,
        }

    def start(self, *options: str, wait: bool = True) -> None:
        command = [*COMMAND, "--data", str(self.data), "--port", str(self.port), "--master", self.master]
        command += ["--dev-webhooks", *self._options, *options]
        self.points.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **self.environment}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Until the gateway listens and the driver has Spark running."""
        give_up = time.monotonic() + seconds
        while not (self._listens() and self.driver_state() == "running"):
            status = None if self._process is None else self._process.poll()
            if status is not None or time.monotonic() > give_up:
                ended = "is not ready" if status is None else f"ended with status {status}"
                raise NotStartedError(f"the service {ended}:\n{self.said()}")
            time.sleep(0.1)

    def said(self, characters: int = 3000) -> str:
        return self.output.read_text(errors="replace")[-characters:] if self.output.exists() else ""

    def ends_by_itself(self, seconds: float) -> int | None:
        """The exit status of a service that gives up, None where it does not within these seconds."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int:
        """As Ctrl-C does; answers its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the service did not stop within {STOP_SECONDS:g} s:\n{self.said()}") from None

    def kill(self) -> None:
        """All of it at once, as when the power goes, but for what the system has not written yet."""
        if self._process is None:
            return
        pids = [self._process.pid, *descendants(self._process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        until(lambda: not any(_alive(pid) for pid in pids))

    def pid_of(self, child: str) -> int | None:
        """The process id of "gateway" or "driver", while there is one."""
        assert self._process is not None
        for pid in children(self._process.pid):
            if f"tidings.service.{child}" in command_of(pid):
                return pid
        return None

    def processes(self, kind: str) -> list[int]:
        """Those of a kind that run now: supervisor, gateway, driver, JVM or worker."""
        assert self._process is not None
        if kind == "supervisor":
            return [self._process.pid] if self._process.poll() is None else []
        child = self.pid_of("gateway" if kind == "gateway" else "driver")
        if child is None or kind in ("gateway", "driver"):
            return [] if child is None else [child]
        return [pid for pid in descendants(child) if ("java" in command_of(pid).split(" ")[0]) == (kind == "JVM")]

    @property
    def runs(self) -> bool:
        """Whether the supervisor does."""
        return self._process is not None and self._process.poll() is None

    def kill_child(self, child: str) -> int:
        """Kill the gateway or the driver, waiting for one that is just being started."""
        pid = until(lambda: self.pid_of(child), f"there is no {child} to kill")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextlib.contextmanager
    def held_at(self, point: str) -> Iterator[None]:
        """While some process of the service is held at a point: see `points/sitecustomize.py`."""
        armed = self.points / point
        held = armed.with_name(f"{point}.held")
        armed.touch()
        try:
            until(held.exists, lambda: f"no process came to the point '{point}':\n{self.said()}")
            yield
        finally:
            for file in (armed, held):
                file.unlink(missing_ok=True)

    def kill_at(self, point: str, child: str) -> None:
        """Kill the gateway or the driver while it, or a process of its own, is held at a point."""
        with self.held_at(point):
            self.kill_child(child)

    def executors(self) -> list[int]:
        """The JVMs that Spark runs tasks in, where those are processes of their own."""
        assert self._process is not None
        return [pid for pid in descendants(self._process.pid) if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def memory(self) -> dict[str, int]:
        """Bytes of the gateway, of the driver's Python, of its JVM, and of the Pythons that this starts."""
        sizes: dict[str, int] = {}
        for child in ("gateway", "driver"):
            pid = self.pid_of(child)
            if pid is None:
                continue
            sizes[child] = own_bytes(pid)
            for below in descendants(pid):
                kind = "JVM" if "java" in command_of(below).split(" ")[0] else "workers"
                sizes[kind] = sizes.get(kind, 0) + own_bytes(below)
        return sizes

    def driver_state(self) -> str | None:
        status = self.driver_status()
        pid = self.pid_of("driver")
        return status.get("state") if pid is not None and status.get("pid") == pid else None

    def driver_status(self) -> dict[str, object]:
        try:
            found: dict[str, object] = json.loads((self.data / "driver.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
            return True
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # After the command in brackets, which may hold anything: state, then the parent.
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(folder.name))
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def own_bytes(pid: int) -> int:
    """Resident memory, that which processes share divided by how many they are: Spark forks its workers."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
