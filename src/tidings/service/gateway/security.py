"""Who may do what: tokens, hosts, where the service listens, and where webhooks may go."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from concurrent.futures import Executor
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from tidings.errors import TidingsError
from tidings.service.gateway.fair_threads import asking
from tidings.service.gateway.problems import Problem, invalid
from tidings.store.catalogue import Catalogue

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL = 2_000
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that is given out (RFC 4291)
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_RELAYS = ipaddress.ip_network("192.88.99.0/24")  # of 6to4
_CACHED_TOKENS = 10_000
CONNECTION = "tidings.connection"  # where a request's scope has the connection that it came on


class BindError(TidingsError):
    """A place to listen at that would leave the service open to others."""


def check_bind(host: str, *, tls: bool, token: bool) -> None:
    """Refuse to listen for others than this machine without both encryption and a token."""
    if is_loopback(host) or (tls and token):
        return
    lacking = " and ".join(
        name for name, there in (("TLS (--certificate, --key)", tls), ("a token", token)) if not there
    )
    raise BindError(f"serve: {host} can be reached from other machines, and there is no {lacking}; add it, or leave "
                    "--host at 127.0.0.1")  # fmt: skip


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(headers: Headers) -> str:
    """The name that a request is addressed to, without its port."""
    host = headers.get("host", "").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class Connection(Protocol):
    """The connection that a request came on, as far as tenants are concerned."""

    def belongs_to(self, tenant: str) -> None: ...

    def hold(self, tenant: str, name: str) -> None: ...


def connection_of(request: Request) -> Connection | None:
    """The connection of a request; None where another server than ours runs the application."""
    found: Connection | None = request.scope.get(CONNECTION)
    return found


class Tokens:
    """Who sends a request. What the catalogue said is remembered for some seconds."""

    def __init__(self, catalogue: Catalogue, executor: Executor, seconds: float) -> None:
        self._catalogue = catalogue
        self._executor = executor
        self._seconds = seconds
        self._known: OrderedDict[str, tuple[str | None, float]] = OrderedDict()

    async def tenant(self, request: Request) -> str:
        """The tenant of a request's token, who has the connection from now on; 401 where there is none."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise _unauthorized("send the header Authorization: Bearer …, with a token of `tidings token create`")
        known = self._known.get(secret)
        if known is None or known[1] < time.monotonic():
            known = await self._look_up(secret)
        if known[0] is None:
            raise _unauthorized("there is no such token, or it was revoked", error="invalid_token")
        asking.set(known[0])
        if (connection := connection_of(request)) is not None:
            connection.belongs_to(known[0])
        return known[0]

    async def _look_up(self, secret: str) -> tuple[str | None, float]:
        loop = asyncio.get_running_loop()
        tenant = await loop.run_in_executor(self._executor, self._catalogue.tenant_of, secret)
        known = (tenant, time.monotonic() + self._seconds)
        if tenant is not None:  # what nobody has ever had is not worth remembering
            self._known[secret] = known
            while len(self._known) > _CACHED_TOKENS:
                self._known.popitem(last=False)
        else:
            self._known.pop(secret, None)
        return known


def _unauthorized(detail: str, error: str | None = None) -> Problem:
    challenge = 'Bearer realm="tidings"' + (f', error="{error}"' if error else "")
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": challenge})


def check_webhook_url(url: object, *, development: bool, pointer: str = "/delivery/url") -> str:
    """A URL that a webhook may have. Where its name leads to is looked at when something is sent."""
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
    local = development and (host == "localhost" or (literal is not None and literal.is_loopback))
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise invalid("webhooks go to https only", pointer)
    if literal is not None and not may_be_sent_to(literal, development=development):
        raise invalid(f"webhooks go to public addresses only, and {literal} is none", pointer)
    if host == "localhost" and not development:
        raise invalid("webhooks go to public addresses only; --development lets them go to this machine", pointer)
    return url


def may_be_sent_to(address: Address, *, development: bool) -> bool:
    """Whether an address is everybody's; with `development`, also whether it is this machine's own.

    An address that has an IPv4 address in it is judged by that one. Those of tunnels lead to whoever runs a relay.
    """
    if development and address.is_loopback:
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not (address.is_multicast or address.is_reserved or address in _RELAYS)
    if address.ipv4_mapped is not None:
        return may_be_sent_to(address.ipv4_mapped, development=development)
    if address in _NAT64:
        return may_be_sent_to(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF), development=False)
    return address in _UNICAST and address.is_global and not any(address in network for network in _NOT_PUBLIC)
