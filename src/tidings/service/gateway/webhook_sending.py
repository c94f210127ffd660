"""One attempt at a webhook: signed, to a public address that was looked at, with an end to everything."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import ssl
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

import httpcore
from standardwebhooks import Webhook

from tidings.service.gateway.gateway_settings import WebhookSettings
from tidings.service.gateway.host_lookup import Resolver

SECRET_PREFIX = "whsec_"
_who: ContextVar[str] = ContextVar("the tenant whose webhook is sent")


class Outcome(NamedTuple):
    """How an attempt ended."""

    status: int | None  # None where there was no answer
    reason: str
    retry_after: float | None = None  # seconds that the receiver wants to be left alone for

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
        resolver = Resolver(seconds=settings.lookup_seconds, at_once=settings.at_once, development=development)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=settings.at_once,
            max_keepalive_connections=settings.at_once,
            keepalive_expiry=30.0,
            network_backend=_Pinned(resolver),
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def send(self, url: str, secrets: Sequence[str], message: str, body: str, *, who: str) -> Outcome:
        """Post a body, signed with each secret, and say what became of it; never raises for what the other side does.

        `who` is the tenant, whose share of lookups it is.
        """
        _who.set(who)
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                return await self._post(url, _headers(secrets, message, body), body.encode())
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
            outcome = Outcome(status, _reason(status), _retry_after(response.headers))
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


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """The seconds of Retry-After, a number or a date (RFC 9110, 10.2.3); None where there are none that make sense."""
    given = next((value for name, value in headers if name.lower() == b"retry-after"), b"").decode("latin-1").strip()
    if given.isascii() and given.isdigit():
        return float(given[:12])
    try:
        moment = email.utils.parsedate_to_datetime(given)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return max(0.0, (moment - dt.datetime.now(dt.UTC)).total_seconds())


def _headers(secrets: Sequence[str], message: str, body: str) -> list[tuple[str, str]]:
    now = dt.datetime.now(dt.UTC)
    return [
        ("content-type", "application/json"),
        ("user-agent", "tidings"),
        ("webhook-id", message),
        ("webhook-timestamp", str(int(now.timestamp()))),
        ("webhook-signature", " ".join(Webhook(secret).sign(message, now, body) for secret in secrets)),
    ]


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the very address that was looked at: a name that is asked twice may lead elsewhere."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolver.addresses(host, port, who=_who.get())
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
