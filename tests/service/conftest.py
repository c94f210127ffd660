"""A gateway on a port of this machine, and a stand-in for the driver that fills its mailboxes.

Most tests share one gateway, each as a tenant of its own: tenants see nothing of each other but the positions,
which go on from test to test.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.service.data.data_directory import DEFAULT_TENANT, DataDirectory
from tidings.service.gateway.gateway_settings import Settings, WebhookSettings
from tidings.store.catalogue import Catalogue, JobRow
from tidings.store.mailboxes.notifications import LOG, Notifications

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
QUICK = WebhookSettings(timeout_seconds=LAST_RESORT_SECONDS, backoff_seconds=(0.05, 0.05), max_answer_bytes=1024)
SETTINGS = Settings(dev_webhooks=True, webhooks=QUICK, sweep_seconds=0.05, backtest_wait_seconds=0.3)


class Server:
    """A real gateway over real files, served by uvicorn in a thread."""

    def __init__(self, path: Path, settings: Settings, certificate: Path | None = None) -> None:
        self.data = DataDirectory(path)
        self.settings = settings
        self.certificate = certificate  # with its key, for TLS
        self._tenants = count()
        self.start()

    def start(self) -> None:
        import uvicorn

        from tidings.service.gateway.app import create_app
        from tidings.service.gateway.connections import GatewayConfig

        self.app = create_app(self.data, self.settings)
        config = GatewayConfig(
            self.app,
            port=0,
            log_level="error",
            lifespan="on",
            timeout_graceful_shutdown=2,
            ssl_certfile=self.certificate,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started or not self._thread.is_alive())
        assert self._server.started, "the gateway did not start"
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"{'http' if self.certificate is None else 'https'}://127.0.0.1:{port}"
        self.catalogue = Catalogue(self.data.catalogue)

    def stop(self) -> None:
        self.catalogue.close()
        self.app.state.context.close()
        self._server.should_exit = True
        self._thread.join(LAST_RESORT_SECONDS)
        assert not self._thread.is_alive(), "the gateway did not stop"

    def new_tenant(self) -> Gateway:
        name = f"tenant{next(self._tenants)}"
        return Gateway(self, name, self.catalogue.create_token(name, "test"))

    def first_tenant(self) -> Gateway:
        """The one whose token the gateway made itself, and who operates it."""
        return Gateway(self, DEFAULT_TENANT, self.data.read_token() or "")


class Gateway:
    """A running gateway as one of its tenants has it."""

    def __init__(self, server: Server, name: str, token: str) -> None:
        self._server = server
        self.name = name
        self.token = token
        self._batches = 0
        self._clients: list[httpx2.Client] = []
        self.client = self.client_of(token)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def data(self) -> DataDirectory:
        return self._server.data

    @property
    def catalogue(self) -> Catalogue:
        return self._server.catalogue

    @property
    def context(self) -> Any:
        """What the gateway has open."""
        return self._server.app.state.context

    @property
    def end(self) -> int:
        """The position that the next event will have."""
        end: int = self.context.reader.end
        return end

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    def restart(self) -> None:
        self.close()
        self._server.stop()
        self._server.start()
        self.client = self.client_of(self.token)

    def client_of(self, token: str | None, **headers: str) -> httpx2.Client:
        given = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
        client = httpx2.Client(
            base_url=self.url, headers=given, timeout=LAST_RESORT_SECONDS, verify=self._server.certificate is None
        )
        self._clients.append(client)
        return client

    def stranger(self) -> httpx2.Client:
        """A client of another tenant."""
        other = self._server.new_tenant()
        self._clients.append(other.client)
        return other.client

    def other_tenant(self) -> Gateway:
        """The same gateway as another tenant has it."""
        other = self._server.new_tenant()
        self._clients.append(other.client)
        return other

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

    def open_jobs(self) -> list[JobRow]:
        return [job for job in self.catalogue.open_jobs() if job.tenant == self.name]

    @property
    def mailboxes(self) -> Path:
        """The file of the mailboxes of `stocks`, in a folder that is there."""
        return self.mailboxes_of("stocks")

    def mailboxes_of(self, domain: str) -> Path:
        files = self.data.domain(self.name, domain)
        files.folder.mkdir(parents=True, exist_ok=True)
        return files.mailboxes

    def load(self, positions: list[int], *ids: str, max_waiting: int = 100_000) -> None:
        """Load matches as the driver does: every one of these events for every one of these subscriptions."""
        rows = [row for row in (self.catalogue.get(self.name, id) for id in ids) if row is not None]
        assert len(rows) == len(ids)
        numbers = [row.filters[-1].number for row in rows]
        self.load_numbers(positions, numbers, max_waiting, domain=rows[0].domain if rows else "stocks")

    def load_numbers(
        self, positions: list[int], numbers: list[int], max_waiting: int = 100_000, *, domain: str = "stocks"
    ) -> None:
        table = pa.table(
            {
                "position": pa.array(positions, pa.int64()),
                "subscriptions": pa.array([numbers] * len(positions), pa.list_(pa.int64())),
            }
        )
        with Notifications(self.mailboxes_of(domain), max_waiting=max_waiting) as mailboxes:
            reached = {LOG: max(positions, default=0)}
            mailboxes.load([table], query="stream", batch=self._batches, version=1, reached=reached)
        self._batches += 1


def made_certificate(folder: Path) -> Path:
    """A certificate for this machine, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost".split()
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", *made, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Those of the machine are read once, and not by every client and gateway: that takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


_shared: list[Server] = []  # the one that runs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: None) -> Server:
    """The gateway that tests share."""
    pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")
    if not _shared:
        _shared.append(Server(tmp_path_factory.mktemp("shared") / "data", SETTINGS))
    return _shared[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """The gateway that tests share ends with the last of them: those of other folders have the machine alone."""
    if _shared and (nextitem is None or Path(__file__).parent not in nextitem.path.parents):
        _shared.pop().stop()


@pytest.fixture
def gateway(server: Server) -> Iterator[Gateway]:
    """The shared gateway, as a tenant has it who has nothing yet."""
    tenant = server.new_tenant()
    yield tenant
    tenant.close()


@pytest.fixture
def stocks(gateway: Gateway) -> Gateway:
    """The shared gateway, as a tenant has it who has a domain."""
    gateway.describe()
    return gateway


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Gateways that no other test has, with a domain, and with other settings than most."""
    pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")
    made: list[tuple[Server, Gateway]] = []

    def make(**changes: Any) -> Gateway:
        server = Server(tmp_path / f"data{len(made)}", dataclasses.replace(SETTINGS, **changes))
        tenant = server.first_tenant()
        made.append((server, tenant))
        tenant.describe()
        return tenant

    yield make
    for server, tenant in made:
        tenant.close()
        server.stop()


@pytest.fixture
def alone(make_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway with a domain that no other test has: to be restarted, or looked at as a whole."""
    return make_gateway()
