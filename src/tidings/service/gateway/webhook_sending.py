"""One attempt at a webhook: signed, to a public address that was checked, with a limit on everything.

A host's name is looked up in a thread of its own, because a lookup cannot be cancelled and a silent name server holds
it for half a minute or more. There are only so many lookups at a time, shared fairly by tenants.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import email.utils
import ipaddress
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import httpcore2
from standardwebhooks import Webhook

from tidings.service.gateway.gateway_settings import WebhookSettings
from tidings.service.gateway.problems import invalid
from tidings.service.gateway.scheduling import Shares

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
MAX_URL = 2_000
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")  # all IPv6 addresses that are assigned (RFC 4291)
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_RELAYS = ipaddress.ip_network("192.88.99.0/24")  # of 6to4


class Resolver:
    """Looks up hosts; belongs to one event loop."""

    def __init__(self, *, seconds: float, at_once: int, dev_webhooks: bool) -> None:
        self._seconds = seconds
        self._shares = Shares(at_once)
        self._dev_webhooks = dev_webhooks
        self._under_way: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str, port: int, *, who: str) -> list[str]:
        """Returns the addresses of a host; raises OSError if one may not be sent to, or the lookup takes too long.

        One such address is enough: a name with both kinds may be an attempt to have the other one tried.
        """
        looking = self._under_way.get((host, port)) or self._look_up(host, port, who)
        try:
            found = await asyncio.wait_for(asyncio.shield(looking), self._seconds)
        except TimeoutError:
            raise OSError(
                f"the host {host} cannot be found: no name server answered within {self._seconds:g} s"
            ) from None
        except OSError as error:
            raise OSError(f"the host {host} cannot be found: {error.strerror or error}") from None
        addresses = list(dict.fromkeys(found))
        if not addresses:
            raise OSError(f"the host {host} has no address")
        for address in addresses:
            if not may_be_sent_to(ipaddress.ip_address(address), dev_webhooks=self._dev_webhooks):
                raise OSError(f"the host {host} is at {address}, which is not a public address")
        return addresses

    def _look_up(self, host: str, port: int, who: str) -> asyncio.Future[list[str]]:
        if not self._shares.has_room(who):
            raise OSError(f"the host {host} cannot be looked up now: too many other lookups have no answer yet")
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[list[str]] = loop.create_future()
        looking.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # nobody may be waiting for it any more
        self._under_way[host, port] = looking
        self._shares.take(who)

        def done(answer: Callable[[Any], None], value: Any) -> None:
            self._shares.give_back(who)
            del self._under_way[host, port]
            answer(value)

        def work() -> None:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
                answer: tuple[Callable[[Any], None], Any] = (
                    looking.set_result,
                    [str(entry[4][0]).partition("%")[0] for entry in found],
                )
            except Exception as error:  # whatever it is, nobody waits forever
                answer = (looking.set_exception, error if isinstance(error, OSError) else OSError(str(error)))
            with contextlib.suppress(RuntimeError):  # the service has stopped meanwhile
                loop.call_soon_threadsafe(done, *answer)

        threading.Thread(target=work, name=f"tidings-dns {host}", daemon=True).start()
        return looking


SECRET_PREFIX = "whsec_"
_who: ContextVar[str] = ContextVar("the tenant whose webhook is sent")


class Outcome(NamedTuple):
    """How an attempt ended."""

    status: int | None  # None: there was no response
    reason: str
    retry_after: float | None = None  # seconds that the receiver wants us to wait

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no more webhooks (Standard Webhooks)."""
        return self.status == 410


class Sender:
    """Sends webhooks over connections that are kept for the next one."""

    def __init__(self, settings: WebhookSettings, *, dev_webhooks: bool) -> None:
        self._settings = settings
        resolver = Resolver(seconds=settings.lookup_seconds, at_once=settings.at_once, dev_webhooks=dev_webhooks)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=settings.at_once,
            max_keepalive_connections=settings.at_once,
            keepalive_expiry=30.0,
            network_backend=_Pinned(resolver),
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def send(self, url: str, secrets: Sequence[str], message: str, body: str, *, who: str) -> Outcome:
        """Posts a body, signed with each secret, and returns the outcome; never raises for what the receiver does.

        `who` is the tenant, whose share of lookups is used.
        """
        _who.set(who)
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                return await self._post(url, _headers(secrets, message, body), body.encode())
        except TimeoutError:
            return Outcome(None, f"no answer within {self._settings.timeout_seconds:g} s")
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            return Outcome(None, str(error) or type(error).__name__)
        except (OSError, ssl.SSLError) as error:
            return Outcome(None, str(error))
        except (httpcore2.UnsupportedProtocol, httpcore2.ConnectionNotAvailable) as error:
            return Outcome(None, str(error) or type(error).__name__)

    async def _post(self, url: str, headers: list[tuple[str, str]], body: bytes) -> Outcome:
        async with self._pool.stream("POST", url, headers=headers, content=body) as response:
            status = response.status
            outcome = Outcome(status, _reason(status), _retry_after(response.headers))
            # Only the status matters. The rest, if short, is read so that the connection can be used again.
            size = 0
            try:
                async with asyncio.timeout(self._settings.timeout_seconds / 3):
                    async for piece in response.aiter_stream():
                        size += len(piece)
                        if size > self._settings.max_answer_bytes:
                            break
            except (TimeoutError, httpcore2.NetworkError, httpcore2.ProtocolError):
                pass
            return outcome


def new_secret() -> str:
    """Returns a secret as Standard Webhooks writes it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _reason(status: int) -> str:
    if 300 <= status < 400:
        return f"the receiver answered {status}, and redirects are not followed"
    return f"the receiver answered {status}"


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Returns the seconds of Retry-After, a number or a date (RFC 9110, 10.2.3); None if it has neither."""
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


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to the address that was checked: a second lookup of the name might return another."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._resolver.addresses(host, port, who=_who.get())
        failed: Exception | None = None
        for address in addresses[:4]:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        assert failed is not None
        raise failed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def check_webhook_url(url: object, *, dev_webhooks: bool, pointer: str = "/delivery/url") -> str:
    """Returns a URL that a webhook may have. The addresses of its host are checked when something is sent."""
    if not isinstance(url, str) or not url:
        raise invalid("a webhook needs a url, such as https://example.com/hook", pointer)
    if (
        len(url) > MAX_URL
        or not url.isascii()
        or any(not character.isprintable() or character == " " for character in url)
    ):
        raise invalid(f"a url has at most {MAX_URL} printable ASCII characters and no spaces", pointer)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid("this is no url", pointer) from None
    host = parts.hostname
    if not host or port == 0:
        raise invalid("a url names a host, such as https://example.com/hook", pointer)
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise invalid("a url of a webhook has no user, password or fragment", pointer)
    try:
        literal: Address | None = ipaddress.ip_address(host)
    except ValueError:
        literal = None
    local = dev_webhooks and (host == "localhost" or (literal is not None and literal.is_loopback))
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise invalid("webhooks go to https only", pointer)
    if literal is not None and not may_be_sent_to(literal, dev_webhooks=dev_webhooks):
        raise invalid(f"webhooks go to public addresses only, and {literal} is none", pointer)
    if host == "localhost" and not dev_webhooks:
        raise invalid("webhooks go to public addresses only; --dev-webhooks lets them go to this machine", pointer)
    return url


def may_be_sent_to(address: Address, *, dev_webhooks: bool) -> bool:
    """Whether an address is public; with `dev_webhooks`, or this machine's own.

    An address that contains an IPv4 address is judged by that one. Those of tunnels lead to unknown relays.
    """
    if dev_webhooks and address.is_loopback:
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not (address.is_multicast or address.is_reserved or address in _RELAYS)
    if address.ipv4_mapped is not None:
        return may_be_sent_to(address.ipv4_mapped, dev_webhooks=dev_webhooks)
    if address in _NAT64:
        return may_be_sent_to(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF), dev_webhooks=False)
    return address in _UNICAST and address.is_global and not any(address in network for network in _NOT_PUBLIC)
