"""A service to measure: `tidings serve` on this machine, with a domain and its subscriptions."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.light_http import request
from benchmarks.processes import command_of, tree_mib
from tidings.service.data.data_directory import DEFAULT_TENANT, DataDirectory
from tidings.store.catalogue import Catalogue, NewSubscription
from tidings.testing.workloads import Workload

READY_SECONDS = 300.0
STOP_SECONDS = 60.0
# A part of the service, and what its command line has in it; whatever else is below it is the supervisor.
_PARTS = {
    "gateway": "tidings.service.gateway.gateway_process",
    "driver": "tidings.service.driver.driver_process",
    "java": "java ",
    "workers": "pyspark",
}


@dataclass
class RunningService:
    process: subprocess.Popen[bytes]
    port: int
    token: str
    domain: str

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes | None = None, media_type: str = "") -> bytes:
        return request(method, path, self.host, self.token, body, media_type)

    def publish(self, body: bytes, media_type: str = "application/json") -> bytes:
        return self.request("POST", f"/v1/domains/{self.domain}/events", body, media_type)

    def health(self) -> dict[str, Any]:
        asked = urllib.request.Request(
            f"http://{self.host}/v1/health", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def memory_mib(self) -> dict[str, float]:
        """What each part of the service keeps in memory."""
        found = dict.fromkeys((*_PARTS, "supervisor"), 0.0)
        for process, mib in tree_mib(self.process.pid).items():
            command = command_of(process)
            part = next((part for part, mark in _PARTS.items() if mark in command), "supervisor")
            found[part] += mib
        return found


@contextlib.contextmanager
def running(workload: Workload, *, gateway_alone: bool = False) -> Iterator[RunningService]:
    """A service with the workload's subscriptions, from when it matches until it has stopped."""
    with serving(lambda data: subscribe(data, workload), workload.domain.name, gateway_alone=gateway_alone) as service:
        yield service


@contextlib.contextmanager
def serving(
    fill: Callable[[DataDirectory], None], domain: str, *, gateway_alone: bool = False
) -> Iterator[RunningService]:
    """A service with what is filled in before it starts, from when it matches a domain until it has stopped."""
    with tempfile.TemporaryDirectory(prefix="tidings-service-") as folder:
        data = DataDirectory(Path(folder) / "data")
        data.make()
        fill(data)
        port = _free_port()
        command = [sys.executable, "-m", "tidings", "serve", "--data", str(data.path), "--port", str(port)]
        if gateway_alone:
            command = [
                sys.executable,
                "-m",
                "tidings.service.gateway.gateway_process",
                str(data.path),
                "--port",
                str(port),
            ]
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            token = _until(lambda: data.read_token(), process)
            service = RunningService(process, port, token, domain)
            key = f"{DEFAULT_TENANT}.{domain}"
            _until(lambda: _answers(service) if gateway_alone else _matches(data, key), process)
            yield service
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS)


def subscribe(data: DataDirectory, workload: Workload) -> None:
    """The subscriptions, written before the service starts: it is not their making that is measured."""
    with Catalogue(data.catalogue) as catalogue:
        catalogue.put_domain(DEFAULT_TENANT, workload.domain.name, workload.domain.to_json(), inferred=False)
        new = (
            NewSubscription(DEFAULT_TENANT, workload.domain.name, text, id=f"s{number}", delivery="sse")
            for number, text in enumerate(workload.filters.to_pylist())
        )
        made = catalogue.create_many(new)
        catalogue.activate_many([row.filters[-1].number for row in made], 0)


def _until(look: Any, process: subprocess.Popen[bytes]) -> Any:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with status {process.returncode}")
        if found := look():
            return found
        time.sleep(0.05)
    raise RuntimeError(f"the service was not ready within {READY_SECONDS:.0f} s")


def _matches(data: DataDirectory, key: str) -> bool:
    told = (data.read_driver_status() or {}).get("domains", {}).get(key, {})
    return told.get("state") == "running"


def _answers(service: RunningService) -> bool:
    with contextlib.suppress(OSError):
        return bool(service.health())
    return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
