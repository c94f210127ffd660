"""A gateway on a port of this machine, and a stand-in for the driver that fills its mailboxes."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tidings.service.data_directory import DataDirectory
from tidings.service.settings import Settings, WebhookSettings
from tidings.store.catalogue import Catalogue
from tidings.store.notifications import LOG, Notifications

STOCKS = {
    "attributes": [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "volume", "type": "bigint"},
        {"name": "paid", "type": "decimal(10,2)"},
        {"name": "time", "type": "timestamp"},
        {"name": "venue", "type": "struct<country:string,city:string>"},
    ]
}
QUICK = WebhookSettings(timeout_seconds=1.0, backoff_seconds=(0.05, 0.05), max_answer_bytes=1024)


class Gateway:
    """A real gateway over real files, served by uvicorn in a thread."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.data = DataDirectory(path)
        self.settings = settings
        self._batches = 0
        self._clients: list[httpx.Client] = []
        self.start()

    def start(self) -> None:
        import uvicorn

        from tidings.service.app import create_app

        self.app = create_app(self.data, self.settings)
        config = uvicorn.Config(self.app, port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started or not self._thread.is_alive())
        assert self._server.started, "the gateway did not start"
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.catalogue = Catalogue(self.data.catalogue)
        self.token = self.data.read_token() or ""
        self.client = self.client_of(self.token)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.catalogue.close()
        self.app.state.context.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the gateway did not stop"

    def restart(self) -> None:
        self.stop()
        self.start()

    def client_of(self, token: str | None, **headers: str) -> httpx.Client:
        given = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
        client = httpx.Client(base_url=self.url, headers=given, timeout=20)
        self._clients.append(client)
        return client

    def tenant(self, name: str) -> httpx.Client:
        """A client of another tenant."""
        return self.client_of(self.catalogue.create_token(name, "test"))

    # -- shorthands for what most tests begin with

    def describe(self, name: str = "stocks", form: dict[str, Any] | None = None) -> None:
        answer = self.client.put(f"/v1/domains/{name}", json=form or STOCKS)
        assert answer.status_code in (200, 201), answer.text

    def subscribe(self, filter: str = "TRUE", **fields: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/subscriptions", json={"domain": "stocks", "filter": filter, **fields})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def publish(self, *events: dict[str, Any]) -> list[int]:
        answer = self.client.post("/v1/domains/stocks/events", json=list(events))
        assert answer.status_code == 200, answer.text
        positions: list[int] = answer.json()["positions"]
        return positions

    def publish_many(self, count: int) -> list[int]:
        return self.publish(*({"symbol": "OIL", "price": float(row)} for row in range(count)))

    def pull(self, id: str, **query: Any) -> dict[str, Any]:
        answer = self.client.get(f"/v1/subscriptions/{id}/notifications", params=query)
        assert answer.status_code == 200, answer.text
        pulled: dict[str, Any] = answer.json()
        return pulled

    def load(
        self,
        positions: list[int],
        *ids: str,
        tenant: str = "default",
        domain: str = "stocks",
        max_waiting: int = 100_000,
    ) -> None:
        """Load matches as the driver does: every one of these events for every one of these subscriptions."""
        files = self.data.domain(tenant, domain)
        files.folder.mkdir(parents=True, exist_ok=True)
        rows = [self.catalogue.get(tenant, id) for id in ids]
        numbers = [row.filters[-1].number for row in rows if row is not None]
        assert len(numbers) == len(ids)
        self.load_numbers(positions, numbers, files.mailboxes, max_waiting)

    def load_numbers(self, positions: list[int], numbers: list[int], path: Path, max_waiting: int = 100_000) -> None:
        table = pa.table(
            {
                "position": pa.array(positions, pa.int64()),
                "subscriptions": pa.array([numbers] * len(positions), pa.list_(pa.int64())),
            }
        )
        with Notifications(path, max_waiting=max_waiting) as mailboxes:
            reached = {LOG: max(positions, default=0)}
            mailboxes.load([table], query="stream", batch=self._batches, version=1, reached=reached)
        self._batches += 1


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for something that happens elsewhere; answers what it was."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
    return found


@pytest.fixture(scope="session")
def gateway_class() -> type[Gateway]:
    """For tests that have one of their own."""
    pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")
    return Gateway


@pytest.fixture
def settings() -> Settings:
    return Settings(development=True, webhooks=QUICK, sweep_seconds=0.05, backtest_wait_seconds=0.3)


@pytest.fixture
def gateway(tmp_path: Path, settings: Settings) -> Iterator[Gateway]:
    pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")
    running = Gateway(tmp_path / "data", settings)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def stocks(gateway: Gateway) -> Gateway:
    """A gateway with a domain."""
    gateway.describe()
    return gateway


@pytest.fixture
def make_gateway(tmp_path: Path, settings: Settings) -> Iterator[Callable[..., Gateway]]:
    """Gateways with other settings than most."""
    made: list[Gateway] = []

    def make(**changes: Any) -> Gateway:
        made.append(Gateway(tmp_path / f"data{len(made)}", dataclasses.replace(settings, **changes)))
        made[-1].describe()
        return made[-1]

    yield make
    for running in made:
        running.stop()
