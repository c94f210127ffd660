"""One attempt at a webhook: signed, to a public address that was looked at, with an end to everything."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import Iterable
from typing import NamedTuple

import httpcore
from standardwebhooks import Webhook

from tidings.service.security import resolved
from tidings.service.settings import WebhookSettings

SECRET_PREFIX = "whsec_"


class Outcome(NamedTuple):
    """How an attempt ended."""

    status: int | None  # None where there was no answer
    reason: str

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """The receiver wants no more, of this or anything (Standard Webhooks)."""
        return self.status == 410


class Sender:
    """Sends webhooks over connections that are kept for the next one."""

    def __init__(self, settings: WebhookSettings, *, development: bool) -> None:
        self._settings = settings
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=settings.at_once,
            max_keepalive_connections=settings.at_once,
            keepalive_expiry=30.0,
            network_backend=_Pinned(development=development),
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def send(self, url: str, secret: str, message: str, body: str) -> Outcome:
        """Post a body, and say what became of it; never raises for what the other side does."""
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                return await self._post(url, _headers(secret, message, body), body.encode())
        except TimeoutError:
            return Outcome(None, f"no answer within {self._settings.timeout_seconds:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            return Outcome(None, str(error) or type(error).__name__)
        except (OSError, ssl.SSLError) as error:
            return Outcome(None, str(error))
        except (httpcore.UnsupportedProtocol, httpcore.ConnectionNotAvailable) as error:
            return Outcome(None, str(error) or type(error).__name__)

    async def _post(self, url: str, headers: list[tuple[str, str]], body: bytes) -> Outcome:
        async with self._pool.stream("POST", url, headers=headers, content=body) as response:
            status = response.status
            outcome = Outcome(status, _reason(status))
            # The status is the answer. The rest is read so that the connection can be used again, where it is short.
            size = 0
            try:
                async with asyncio.timeout(self._settings.timeout_seconds / 3):
                    async for piece in response.aiter_stream():
                        size += len(piece)
                        if size > self._settings.max_answer_bytes:
                            break
            except (TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
                pass
            return outcome


def _reason(status: int) -> str:
    if 300 <= status < 400:
        return f"the receiver answered {status}, and redirects are not followed"
    return f"the receiver answered {status}"


def _headers(secret: str, message: str, body: str) -> list[tuple[str, str]]:
    now = dt.datetime.now(dt.UTC)
    return [
        ("content-type", "application/json"),
        ("user-agent", "tidings"),
        ("webhook-id", message),
        ("webhook-timestamp", str(int(now.timestamp()))),
        ("webhook-signature", Webhook(secret).sign(message, now, body)),
    ]


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the very address that was looked at: a name that is asked twice may lead elsewhere."""

    def __init__(self, *, development: bool) -> None:
        self._development = development
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await resolved(host, port, development=self._development)
        failed: Exception | None = None
        for address in addresses[:4]:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        assert failed is not None
        raise failed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
