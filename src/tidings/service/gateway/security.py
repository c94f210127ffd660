"""Who may do what: tokens, hosts, and where the service listens."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import Request

from tidings.errors import TidingsError
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.scheduling import FairThreads, asking
from tidings.store.catalogue import Catalogue

_CACHED_TOKENS = 10_000
CONNECTION = "tidings.connection"  # the key of a request's connection in its scope


class BindError(TidingsError):
    """An address to listen at that would leave the service open to others."""


def check_bind(host: str, *, tls: bool, token: bool) -> None:
    """Raises BindError for an address that other machines can reach, unless there are TLS and a token."""
    if is_loopback(host) or (tls and token):
        return
    lacking = " and ".join(
        name for name, there in (("TLS (--certificate, --key)", tls), ("a token", token)) if not there
    )
    raise BindError(
        f"serve: {host} can be reached from other machines, and there is no {lacking}; add it, or leave "
        "--host at 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(headers: Headers) -> str:
    """Returns the name that a request is addressed to, without its port."""
    host = headers.get("host", "").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class Connection(Protocol):
    """The connection of a request, which counts for a tenant."""

    def belongs_to(self, tenant: str) -> None: ...

    def hold(self, tenant: str, name: str) -> None: ...


def connection_of(request: Request) -> Connection | None:
    """Returns the connection of a request; None if another server than ours runs the application."""
    found: Connection | None = request.scope.get(CONNECTION)
    return found


class Tokens:
    """Finds the tenant of a request. What the catalogue returned is remembered for some seconds."""

    def __init__(self, catalogue: Catalogue, threads: FairThreads, seconds: float) -> None:
        self._catalogue = catalogue
        self._threads = threads
        self._seconds = seconds
        self._known: OrderedDict[str, tuple[str | None, float]] = OrderedDict()

    async def tenant(self, request: Request) -> str:
        """Returns the tenant of a request's token, which the connection counts for from now on; raises a 401."""
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
        tenant = await self._threads.run(self._catalogue.tenant_of, secret)
        known = (tenant, time.monotonic() + self._seconds)
        if tenant is not None:  # an unknown token is not remembered
            self._known[secret] = known
            while len(self._known) > _CACHED_TOKENS:
                self._known.popitem(last=False)
        else:
            self._known.pop(secret, None)
        return known


def _unauthorized(detail: str, error: str | None = None) -> Problem:
    challenge = 'Bearer realm="tidings"' + (f', error="{error}"' if error else "")
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": challenge})
