"""Starts the gateway and the driver, restarts either when it crashes, and ends both.

    starting ─► ready ─► stopping ─► ended
                 ▲  │
                 └──┘ a child crashed: its other processes are killed, and after a pause it is restarted

The children end with the supervisor, however it ends: on Linux the kernel does that, and the driver checks by itself.
A data directory has one supervisor at a time. A child that ends before it was ever ready was given something that it
cannot work with: it is not restarted, and its own error says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from tidings.errors import TidingsError
from tidings.service.data.data_directory import CATALOGUE, DEFAULT_TENANT, LOG, DataDirectory, DataDirectoryError
from tidings.service.data.private_files import tighten
from tidings.service.gateway.driver_lag import DRIVER, driver_state, problems_of
from tidings.store.catalogue import Catalogue, CatalogueError
from tidings.store.log.log_errors import LogBusyError
from tidings.store.log.log_files import WriterLock

LOOK_SECONDS = 0.05
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 10.0  # before a child is started again
HEALTHY_SECONDS = 30.0  # after which a crash counts as a first one
REPORT_SECONDS = 1.0  # between looks at whether all streams run
DOMAINS_SECONDS = 10.0  # between looks at which domains there are
SILENT_SECONDS = 15.0  # after which it is printed that a running driver reports nothing
HUNG_SECONDS = 600.0  # after which it is killed, and so restarted
STOP_SECONDS = 30.0  # after which a child that has not ended is killed

_log = logging.getLogger("tidings.service")


@dataclass(frozen=True)
class ServicePlan:
    """What is served, and how: the options of `tidings serve`."""

    data: DataDirectory
    host: str = "127.0.0.1"
    port: int = 8080
    master: str = "local[*]"
    catalogue: str | None = None
    log: str | None = None
    recover: bool = False
    dev_webhooks: bool = False
    certificate: Path | None = None  # of TLS, with its key
    key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()  # names that requests may be addressed to
    retain: tuple[str, ...] = ()  # limits of the log; without any, the gateway's default
    quotas: Path | None = None  # a file with the quotas of tenants; None: the gateway's default
    max_lag: int | None = None  # events of a domain that may wait to be matched; None: the gateway's default
    adapt_every: float | None = None  # seconds between looks whether another View would pay; None: the driver's default
    placement: str | None = None  # None: the cheapest
    share_up_to: int | None = None  # subscriptions up to which domains share a stream; None: the driver's default
    output: Path | None = None  # the log file of the children; None: they share the output of the supervisor

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else "::1" if self.host == "::" else self.host
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def gateway(self) -> list[str]:
        command = [sys.executable, "-m", "tidings.service.gateway.gateway_process", str(self.data.path)]
        command += ["--host", self.host, "--port", str(self.port)]
        for option, value in (("--certificate", self.certificate), ("--key", self.key), ("--quotas", self.quotas)):
            command += [] if value is None else [option, str(value)]
        for limit in self.retain:
            command += ["--retain", limit]
        for name in self.allowed_hosts:
            command += ["--allow-host", name]
        command += [] if self.max_lag is None else ["--max-lag", str(self.max_lag)]
        return command + (["--dev-webhooks"] if self.dev_webhooks else [])

    def driver(self) -> list[str]:
        command = [sys.executable, "-m", "tidings.service.driver.driver_process", str(self.data.path), "--supervised"]
        command += ["--master", self.master]
        command += [] if self.adapt_every is None else ["--adapt-every", f"{self.adapt_every:g}"]
        command += [] if self.placement is None else ["--placement", self.placement]
        command += [] if self.share_up_to is None else ["--share-up-to", str(self.share_up_to)]
        return command + (["--recover"] if self.recover else [])

    def environment(self) -> dict[str, str]:
        """Returns the environment of the children, with what others must not see on their command lines."""
        ours = {CATALOGUE: self.catalogue, LOG: self.log}
        given = {name: value for name, value in os.environ.items() if name not in ours}
        return given | {name: value for name, value in ours.items() if value is not None}


@contextlib.contextmanager
def prepared(plan: ServicePlan) -> Iterator[bool]:
    """Makes the data directory if there is none, and holds its lock; yields whether it is new."""
    plan.data.make()
    plan.data.lock.mkdir(exist_ok=True, mode=0o700)
    try:
        lock = WriterLock(plan.data.lock)
    except LogBusyError as error:
        who = str(error).partition("is being written by ")[2].partition(";")[0] or "another process"
        raise DataDirectoryError(
            f"data directory: {plan.data.path} is served by {who} already; stop it, or give another with --data"
        ) from None
    try:
        if opened := tighten(plan.data.path):
            _log.warning("%d files of %s could be read by others; now only their owner can", opened, plan.data.path)
        yield _first_token(plan)
    finally:
        lock.release()


def _first_token(plan: ServicePlan) -> bool:
    """Make the first token if there is none; returns whether it was made."""
    with Catalogue(plan.catalogue or plan.data.catalogue) as catalogue:
        secret = plan.data.read_token()
        if secret is None:
            plan.data.write_token(catalogue.create_token(DEFAULT_TENANT, "the first"))
            return True
        if catalogue.tenant_of(secret) is None:
            raise DataDirectoryError(
                f"token: the one in {plan.data.token} is not in the catalogue {catalogue.place}: one of the two is "
                "from elsewhere; restore it, or remove the token to get a new one"
            )
    return False


@dataclass(eq=False)
class Child:
    """One of the processes, and its crashes."""

    name: str
    command: list[str]
    is_ready: Callable[[int], bool]  # by its process id
    output: Path | None
    environment: dict[str, str] | None = None  # None: that of the supervisor
    ready: bool = False  # has been ready before
    crashes: int = 0
    process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _due: float = 0.0

    def start(self) -> None:
        self._started = time.monotonic()
        with contextlib.ExitStack() as opened:
            output: IO[bytes] | None = None
            if self.output is not None:
                output = opened.enter_context(self.output.open("ab"))
            # Its own session: the supervisor passes Ctrl-C on, and can kill what a crash leaves.
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def look(self) -> None:
        """Note that it is ready, or restart it after a crash; raises if it never was ready."""
        if self.process is None:
            if time.monotonic() >= self._due:
                self.start()
            return
        status = self.process.poll()
        if status is None:
            self.ready = self.ready or self.is_ready(self.process.pid)
            return
        self.sweep()
        if not self.ready:
            where = "" if self.output is None else f"; see {self.output}"
            raise TidingsError(f"serve: the {self.name} did not start: {_ending_of(status)}{where}")
        healthy = time.monotonic() - self._started > HEALTHY_SECONDS
        self.crashes = 1 if healthy else self.crashes + 1
        pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2 ** (self.crashes - 1))
        self._due = time.monotonic() + pause
        self.process = None
        _log.warning("the %s ended (%s); it restarts in %.1f s", self.name, _ending_of(status), pause)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def sweep(self) -> None:
        """Kill what is left of its session, such as a JVM whose Python has ended: it must not write any more."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, until: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.warning("the %s does not end and is killed", self.name)
            self.process.kill()
            self.process.wait()
        self.sweep()


@dataclass(eq=False)
class Supervisor:
    """Runs a plan until it is told to stop. Call `run` in the main thread, which children are bound to."""

    plan: ServicePlan
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        plan = self.plan
        self._reported = 0.0
        self._problems: dict[str, str] = {}  # by domain, or of all, as was last printed
        self._heard: tuple[Any, float] = (None, time.monotonic())  # when the driver last wrote, and when that was seen
        self._looked = float("-inf")
        self._created: dict[str, float] = {}  # the domains of the catalogue, as was last seen, and when they were made
        environment = plan.environment()
        self.gateway = Child("gateway", plan.gateway(), lambda _: _accepts(plan), plan.output, environment)
        self.driver = Child("driver", plan.driver(), lambda pid: _matches(plan, pid), plan.output, environment)

    def run(self, on_ready: Callable[[], None] = lambda: None, *, ending: Callable[[], None] = lambda: None) -> None:
        """Run until SIGINT or SIGTERM, or until `stopped` is set; raises if a child cannot be started.

        `on_ready` is called once, when both serve, and `ending` before they are told to end.
        """
        children, told = (self.gateway, self.driver), False
        if _accepts(self.plan):
            raise TidingsError(f"serve: another process listens at {self.plan.url}; stop it, or give another --port")
        with self._signals():
            try:
                for child in children:
                    child.start()
                while not self.stopped.wait(LOOK_SECONDS):
                    for child in children:
                        child.look()
                    self._report()
                    if not told and all(child.ready for child in children):
                        told = True
                        on_ready()
            finally:
                self.stopped.set()
                try:
                    ending()
                finally:
                    self._end(children)

    def _report(self) -> None:
        """Print when events are not matched as they come, and when they are again; now and then."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        try:
            status = self.plan.data.read_driver_status() or {}
            silence = self._silence(status)
            if silence > SILENT_SECONDS:
                problems = {**self._problems, DRIVER: f"it has reported nothing for {SILENT_SECONDS:g} seconds"}
            else:
                problems = problems_of(status, self._domains()) if driver_state(status) == "running" else self._problems
            if silence > HUNG_SECONDS:
                _log.error("the driver has reported nothing for %g seconds, and is killed", HUNG_SECONDS)
                self.driver.sweep()
        except (DataDirectoryError, OSError) as error:
            problems = {**self._problems, DRIVER: f"its status cannot be read: {error}"}
        for key in problems.keys() - self._problems.keys():
            _log.warning("degraded: %s: %s", key, problems[key])
        for key in self._problems.keys() - problems.keys():
            _log.warning("%s: %s", key, "all is well again" if key == DRIVER else "its stream is running again")
        self._problems = problems

    def _silence(self, status: Mapping[str, Any]) -> float:
        """For how many seconds, by no clock that can be set, a running driver has written nothing; 0 if none runs."""
        process, said = self.driver.process, (status.get("pid"), status.get("time"))
        if said != self._heard[0]:
            self._heard = (said, time.monotonic())
        if process is None or status.get("pid") != process.pid or status.get("state") != "running":
            return 0.0
        return time.monotonic() - self._heard[1]

    def _domains(self) -> dict[str, float]:
        """The domains of the catalogue, and when each was made; looked up now and then."""
        place = self.plan.catalogue or self.plan.data.catalogue
        if time.monotonic() - self._looked > DOMAINS_SECONDS and (isinstance(place, str) or place.exists()):
            self._looked = time.monotonic()
            with contextlib.suppress(CatalogueError), Catalogue(place) as catalogue:
                self._created = {row.key: row.created / 1e6 for row in catalogue.domains()}
        return self._created

    def _end(self, children: tuple[Child, ...]) -> None:
        for child in children:
            child.signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        for child in children:
            child.end(until)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # in a test, or embedded: the caller stops it
            return

        def told(number: int, frame: FrameType | None) -> None:
            if self.stopped.is_set():  # the second signal: end at once
                for child in (self.gateway, self.driver):
                    child.sweep()
            self.stopped.set()

        numbers = (signal.SIGINT, signal.SIGTERM)
        before: list[Any] = [signal.signal(number, told) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _accepts(plan: ServicePlan) -> bool:
    """Whether a process listens at the address of the gateway."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(plan.host, plan.host)
    try:
        with socket.create_connection((host, plan.port), timeout=0.2):
            return True
    except OSError:
        return False


def _matches(plan: ServicePlan, pid: int) -> bool:
    """Whether the driver with this process id has Spark running."""
    with contextlib.suppress(DataDirectoryError, OSError):
        status = plan.data.read_driver_status()
        return status is not None and status.get("pid") == pid and status.get("state") == "running"
    return False


def _ending_of(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """In a child, before its program runs: have the kernel send SIGTERM when the supervisor ends."""
    assert _libc is not None
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == 1:  # it has ended already
        os._exit(1)
