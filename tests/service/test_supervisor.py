"""The supervisor keeps two processes running, and leaves none behind. The processes here are small stand-ins."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.errors import TidingsError
from tidings.service import supervisor as module
from tidings.service.data.data_directory import CATALOGUE, LOG, DataDirectory, DataDirectoryError, replace_json
from tidings.service.gateway import driver_lag
from tidings.service.supervisor import ServicePlan, Supervisor, prepared
from tidings.store.catalogue import Catalogue

from . import stand_ins
from .stand_ins import DRIVER, StandIn


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture
def plan(tmp_path: Path) -> StandIn:
    data = DataDirectory(tmp_path / "data")
    data.make()
    return StandIn(data, port=free_port())


@contextmanager
def running(plan: ServicePlan) -> Iterator[Supervisor]:
    supervisor, ready = Supervisor(plan), threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(LAST_RESORT_SECONDS)
        yield supervisor
    finally:
        supervisor.stopped.set()
        thread.join(LAST_RESORT_SECONDS)
    assert not thread.is_alive()


def supervised(plan: StandIn) -> subprocess.Popen[bytes]:
    """The same in a process of its own, which says when it is ready and when it has ended."""
    command = [sys.executable, stand_ins.__file__, str(plan.data.path), str(plan.port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def pid_in(path: Path) -> int:
    return int(path.read_text())


def test_both_children_are_ready_first_and_end_when_it_is_stopped(plan: StandIn) -> None:
    with running(plan) as supervisor:
        gateway, driver = supervisor.gateway.process, supervisor.driver.process
        assert gateway is not None
        assert driver is not None
        socket.create_connection(("127.0.0.1", plan.port)).close()
    assert gateway.poll() is not None
    assert driver.poll() == 0  # by itself, when asked to
    assert (plan.data.path / "ended").read_text() == "driver "


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes as Linux shows them")
def test_either_is_started_again_when_it_is_killed_and_what_it_left_is_killed_too(plan: StandIn) -> None:
    with running(plan):
        for name in ("gateway", "driver"):
            place = plan.data.path / ("gateway.pid" if name == "gateway" else "left.pid")
            before, first = place.read_text(), pid_in(place)
            pid = first if name == "gateway" else json.loads(plan.data.driver_status.read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            until(lambda place=place, before=before: place.read_text() not in ("", before))
            until(lambda first=first: not lives(first))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux sees to it")
def test_the_children_die_with_a_supervisor_that_is_killed(plan: StandIn, tmp_path: Path) -> None:
    parent = supervised(plan)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    gateway = pid_in(plan.data.path / "gateway.pid")
    driver = json.loads(plan.data.driver_status.read_text())["pid"]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not lives(gateway) and not lives(driver))
    assert (plan.data.path / "ended").exists()  # the driver was asked to end, and not cut off


def test_sigterm_ends_the_supervisor_and_both(plan: StandIn) -> None:
    parent = supervised(plan)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.send_signal(signal.SIGTERM)
    assert parent.stdout.readline() == b"ended\n"
    assert parent.wait(LAST_RESORT_SECONDS) == 0
    parent.stdout.close()
    assert (plan.data.path / "ended").exists()


def test_a_child_that_cannot_start_is_not_tried_again(plan: StandIn) -> None:
    broken = StandIn(plan.data, port=plan.port, driver_program="raise SystemExit(3)")
    with pytest.raises(TidingsError, match=r"the driver did not start: exit status 3"):
        Supervisor(broken).run()


def test_a_port_in_use_is_an_error_before_anything_is_started(plan: StandIn) -> None:
    with socket.create_server(("127.0.0.1", plan.port)), pytest.raises(TidingsError, match="give another --port"):
        Supervisor(plan).run()
    assert not (plan.data.path / "gateway.pid").exists()


def test_a_child_that_does_not_end_is_killed(plan: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.3)
    deaf = DRIVER.replace("signal.signal(signal.SIGTERM, ended)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    with running(StandIn(plan.data, port=plan.port, driver_program=deaf)) as supervisor:
        process = supervisor.driver.process
        assert process is not None
    assert process.poll() == -signal.SIGKILL


def test_pauses_grow_while_a_child_keeps_crashing(plan: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 1000.0)  # beside which it does not matter how long a child takes
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 1e9)
    child = Supervisor(plan).driver
    child.ready = True
    child.command = [sys.executable, "-c", "raise SystemExit(1)"]
    pauses = []
    for _ in range(4):
        child._due = 0.0
        child.look()
        assert child.process is not None
        child.process.wait()
        child.look()
        pauses.append(child._due - time.monotonic())
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]


def test_the_first_run_makes_a_directory_and_a_token_that_only_its_owner_reads(tmp_path: Path) -> None:
    plan = ServicePlan(DataDirectory(tmp_path / "new"))
    with prepared(plan) as new:
        assert new
        secret = plan.data.read_token()
        assert secret is not None
        assert stat.S_IMODE(plan.data.token.stat().st_mode) == 0o600
        with Catalogue(plan.data.catalogue) as catalogue:
            assert catalogue.tenant_of(secret) == "default"
    with prepared(plan) as new:
        assert not new
        assert plan.data.read_token() == secret


def test_a_data_directory_has_one_supervisor(tmp_path: Path) -> None:
    plan = ServicePlan(DataDirectory(tmp_path / "data"))
    with prepared(plan), pytest.raises(DataDirectoryError, match=rf"is served by process {os.getpid()} on .* already"):
        prepared(plan).__enter__()


def test_a_token_of_another_catalogue_is_refused(tmp_path: Path) -> None:
    plan = ServicePlan(DataDirectory(tmp_path / "data"))
    with prepared(plan):
        pass
    plan.data.catalogue.unlink()
    with pytest.raises(DataDirectoryError, match="is not in the catalogue"):
        prepared(plan).__enter__()


def test_commands_of_the_children_carry_what_was_asked_for(tmp_path: Path) -> None:
    plan = ServicePlan(
        DataDirectory(tmp_path), host="::", port=81, master="local[2]", recover=True, retain=("7d", "2gb"),
        dev_webhooks=True, certificate=Path("c.pem"), key=Path("k.pem"), allowed_hosts=("example.org",),
        max_lag=7,
    )  # fmt: skip
    assert plan.url == "https://[::1]:81"
    gateway, driver = " ".join(plan.gateway()), " ".join(plan.driver())
    assert "--host :: --port 81 --certificate c.pem --key k.pem --retain 7d --retain 2gb" in gateway
    assert gateway.endswith("--allow-host example.org --max-lag 7 --dev-webhooks")
    assert "--master local[2] --recover" in driver


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        (CATALOGUE, {"catalogue": "postgresql://me:secret@host/db"}),
        (LOG, {"log": "kafka://host/t?sasl.password=secret"}),
    ],
)
def test_passwords_of_the_catalogue_and_the_log_are_not_in_any_command_line(
    tmp_path: Path, variable: str, place: dict[str, str]
) -> None:
    plan = ServicePlan(DataDirectory(tmp_path), **place)
    supervised = Supervisor(plan)
    for child in (supervised.gateway, supervised.driver):
        assert "secret" not in " ".join(child.command)
        assert child.environment is not None
        assert child.environment[variable] in place.values()
    assert variable not in ServicePlan(DataDirectory(tmp_path)).environment()


def test_a_stream_that_stops_running_is_printed_and_so_is_its_return(
    plan: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.0)

    def says(pid: int, **domain: object) -> None:
        status = {"pid": pid, "state": "running", "time": time.time(), "domains": {"ada.quotes": domain}}
        replace_json(plan.data.driver_status, status)

    with running(plan) as supervisor:
        assert supervisor.driver.process is not None
        pid = supervisor.driver.process.pid
        says(pid, state="failed", problem="the disk is full")
        until(lambda: "degraded: ada.quotes: its stream is failed: the disk is full" in caplog.text)
        says(pid, state="running", problem=None)
        until(lambda: "ada.quotes: its stream is running again" in caplog.text)
        says(pid, state="running", problem="the catalogue is locked")
        until(lambda: "degraded: ada.quotes: its stream is running with a problem: the catalogue is" in caplog.text)
        plan.data.driver_status.write_text("[")
        until(lambda: "degraded: driver: its status cannot be read" in caplog.text)
        says(pid, state="running")
        until(lambda: "driver: all is well again" in caplog.text)
        with Catalogue(plan.data.catalogue) as catalogue:
            catalogue.put_domain("ada", "forgotten", "{}", inferred=False)
        monkeypatch.setattr(driver_lag, "OPENING_SECONDS", 0.0)
        monkeypatch.setattr(module, "DOMAINS_SECONDS", 0.0)
        until(lambda: "degraded: ada.forgotten: the driver has no stream for it" in caplog.text)


def test_a_driver_that_hangs_is_printed_and_at_last_replaced(
    plan: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in (("REPORT_SECONDS", 0.0), ("SILENT_SECONDS", 0.1)):
        monkeypatch.setattr(module, name, seconds)
    with running(plan) as supervisor:
        hung = supervisor.driver.process
        assert hung is not None
        os.kill(hung.pid, signal.SIGSTOP)
        until(lambda: "degraded: driver: it has reported nothing for" in caplog.text)
        monkeypatch.setattr(module, "HUNG_SECONDS", 0.2)
        until(lambda: hung.poll() is not None)
        monkeypatch.setattr(module, "HUNG_SECONDS", 600.0)
        until(lambda: supervisor.driver.process not in (None, hung))
