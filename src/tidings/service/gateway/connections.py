"""Connections, from before their tenant is known: how many, how much, and for how long.

    opened ─► head ─► body ─► answered ─┐        a request's line and headers; its body; its response
               ▲                        │
               └──────── waiting ◄──────┘        kept alive, for the next request

A request's line and headers have limits of size and time, a client must read what it is sent at some rate, and few
requests may wait behind another. If connections have run out, the oldest one without a request under way is closed:
unfinished requests cannot keep others out. `tenant_use` divides the rest among tenants.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections import Counter
from collections.abc import Coroutine
from itertools import chain
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr

from tidings.service.gateway.gateway_settings import ServiceLimits
from tidings.service.gateway.problems import Problem, busy
from tidings.service.gateway.security import CONNECTION, is_loopback
from tidings.service.gateway.tenant_use import TenantUse

_QUOTA = "connections"
_LINGER_SECONDS = 2.0  # that a client has before its connection is closed, to read the reason or to send the rest


class Connections:
    """All open connections of a gateway."""

    def __init__(self, limits: ServiceLimits, use: TenantUse) -> None:
        self.limits = limits
        self._use = use
        self._open: dict[GatewayProtocol, str] = {}  # and their addresses
        # Without a request under way, the longest first: of unknown senders, and of tenants.
        self._strangers: dict[GatewayProtocol, None] = {}
        self._resting: dict[GatewayProtocol, None] = {}
        self._by_address: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # by limit
        self.made_way = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: GatewayProtocol, address: str) -> Problem | None:
        """Adds a connection; if there are too many, closes one that waits, or returns why this one is refused."""
        group = _group(address)
        self._open[connection] = group
        self._strangers[connection] = None
        self._by_address[group] += 1
        limits = self.limits
        if not is_loopback(address) and self._by_address[group] > limits.max_connections_per_address:
            return self._make_way(connection, "max_connections_per_address", limits.max_connections_per_address, group)
        if len(self._open) > limits.max_connections:
            return self._make_way(connection, "max_connections", limits.max_connections, None)
        return None

    def _make_way(self, new: GatewayProtocol, name: str, limit: int, group: str | None) -> Problem | None:
        for connection in chain(self._strangers, self._resting):
            if connection is not new and group in (None, self._open[connection]):
                self.made_way += 1
                self.closed(connection)
                connection.transport.abort()
                return None
        self.closed(new)
        self.refused[name] += 1
        whose = "this service" if group is None else "one address"
        detail = f"{whose} may have {limit:,} connections, and all have requests under way; close some, or try later"
        return busy(detail, limit=name, value=limit)

    def closed(self, connection: GatewayProtocol) -> None:
        group = self._open.pop(connection, None)
        if group is not None:
            self.begun(connection)
            self._by_address[group] -= 1
            if not self._by_address[group]:
                del self._by_address[group]

    def begun(self, connection: GatewayProtocol) -> None:
        """Notes that a request is under way."""
        self._strangers.pop(connection, None)
        self._resting.pop(connection, None)

    def ended(self, connection: GatewayProtocol) -> None:
        if connection in self._open:
            (self._strangers if connection.tenant is None else self._resting)[connection] = None

    def take(self, tenant: str, name: str) -> None:
        try:
            self._use.take(tenant, name)
        except Problem as problem:
            problem.headers["Connection"] = "close"
            raise

    def give(self, tenant: str, name: str) -> None:
        self._use.give(tenant, name)


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with limits."""

    def __init__(self, config: Any, *given: Any, **named: Any) -> None:
        super().__init__(config, *given, **named)
        context: Any = config.app.state.context
        self._all: Connections = context.connections
        self._limits = self._all.limits
        self.tenant: str | None = None  # by the last token that was sent
        self._held: list[tuple[str, str]] = []  # what the request under way uses: tenants and quotas
        self._in_head = True  # from the first byte of a request, or of the connection, to the last of its headers
        self._in_body = False
        self._head_bytes = 0  # of the head so far, without the chunk that is being read
        self._chunk = 0
        self._refused = False
        self._timer: asyncio.TimerHandle | None = (
            None  # for the head; after an early response, for the rest of the body
        )
        self._writing: asyncio.TimerHandle | None = None  # for a client that does not read

    # -- opened and closed ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        problem = self._all.opened(self, self.client[0] if self.client else "")
        if problem is not None:  # at once: the place is needed
            self._refused = True
            transport.write(_written(problem))
            transport.close()
        else:
            self._arm()

    def _forget(self) -> None:
        """It is closed, and makes no demands any more."""
        self._all.closed(self)
        self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()
        if self._writing is not None:
            self._writing.cancel()
        self._let_go()
        if self.tenant is not None:
            self._all.give(self.tenant, _QUOTA)
            self.tenant = None

    def shutdown(self) -> None:
        super().shutdown()
        if self._in_body:
            self.loop.call_later(_LINGER_SECONDS, self._end_upload)

    def _end_upload(self) -> None:
        """Closes a connection whose body has not come, since the gateway stops and cannot wait for it."""
        if self._in_body:
            self.transport.abort()

    def belongs_to(self, tenant: str) -> None:
        """Counts this connection for a tenant; raises a 429 if it has too many."""
        if tenant != self.tenant and not self.transport.is_closing():
            self._all.take(tenant, _QUOTA)
            if self.tenant is not None:
                self._all.give(self.tenant, _QUOTA)
            self.tenant = tenant

    def hold(self, tenant: str, name: str) -> None:
        """Counts something for a tenant until the request under way is answered; raises a 429 if it has too many."""
        if not self.transport.is_closing():
            self._all.take(tenant, name)
            self._held.append((tenant, name))

    def _let_go(self) -> None:
        for tenant, name in self._held:
            self._all.give(tenant, name)
        self._held.clear()

    # -- what comes ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._chunk = len(data)
        super().data_received(data)
        if self.transport.is_closing() or self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head_bytes:
                self._all.refused["max_head_bytes"] += 1
                self._refuse(self._head_too_large())
        if self._in_head or self._is_idle():
            self._arm()
        elif not self._in_body or not self.cycle.response_complete:
            self._disarm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._disarm()
        self._in_head, self._in_body, self._head_bytes = True, False, 0
        scope: Any = self.scope
        scope[CONNECTION] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers, after a chunked body, are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        if self._refused:
            return
        # Only a larger chunk can hold a head that is too large: what came before it was counted.
        most = self._limits.max_head_bytes
        if self._head_bytes + self._chunk > most and self._size_of_head() > most:
            self._all.refused["max_head_bytes"] += 1
            self._refuse(self._head_too_large())
        elif len(self.pipeline) >= self._limits.max_pipelined:
            self._all.refused["max_pipelined"] += 1
            self._refused = True
            self.transport.abort()  # a response would be taken for one that the client still waits for
        else:
            self._all.begun(self)
            super().on_headers_complete()

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._let_go()
        super().on_response_complete()
        if not self.pipeline and self.cycle.response_complete:
            self._all.ended(self)
            if (
                self._in_body and not self.transport.is_closing()
            ):  # answered early: the rest is read, for a limited time
                self._arm()

    def _is_idle(self) -> bool:
        return not self._in_body and (self.cycle is None or self.cycle.response_complete)

    # -- deadlines -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_seconds, self._too_late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self._in_head and self._head_bytes and (self.cycle is None or self.cycle.response_complete):
            seconds = self._limits.head_seconds
            late = f"a request's line and headers have {seconds:g} seconds, and these took longer; send them at once"
            self._all.refused["head_seconds"] += 1
            self._refuse(Problem(408, "timeout", late, limit="head_seconds", value=seconds))
        else:  # there is nothing to answer, or the response was sent
            self.transport.close()
            self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _watch(self, unread: int) -> None:
        self._writing = self.loop.call_later(self._limits.write_seconds, self._look, unread)

    def _look(self, unread: int) -> None:
        """Closes the connection of a client that has read too little."""
        self._writing = None
        left = self.transport.get_write_buffer_size()
        least = min(unread, self._limits.write_seconds * self._limits.min_bytes_per_second)
        if unread - left < least:
            self._all.refused["write_seconds"] += 1
            self.transport.abort()
        else:
            self._watch(left)

    # -- refusals ------------------------------------------------------------------------------------

    def _head_too_large(self) -> Problem:
        most = self._limits.max_head_bytes
        large = f"a request's line and headers have at most {most:,} bytes, and these have more; send less"
        return Problem(431, "too-large", large, limit="max_head_bytes", value=most)

    def _refuse(self, problem: Problem) -> None:
        """Sends the reason and closes; reads what the client still sends, or it would not see the reason."""
        self._refused = True
        self._disarm()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # a response is under way, and this would be in the middle of it
            return
        self._all.ended(self)  # it may be closed for others
        self.transport.write(_written(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS, which has its own end
            self.transport.close()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "malformed", "this is not HTTP/1.1, or not as RFC 9112 has it"))

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: a client could fill the log."""


class TlsGatewayProtocol(GatewayProtocol):
    """The same over TLS. A connection counts, and its time runs, from before its handshake, which may never end."""

    def __init__(self, config: GatewayConfig, *given: Any, **named: Any) -> None:
        super().__init__(config, *given, **named)
        assert config.tls is not None
        self._tls = config.tls
        self._early: list[bytes] | None = []  # what came before the end of the handshake was noted; None: it was
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        address = get_remote_addr(transport)
        if self._all.opened(self, address[0] if address else "") is not None:
            transport.abort()  # nobody could read the reason before the handshake
            return
        self._arm()
        seconds = self._limits.head_seconds
        begun = self.loop.start_tls(transport, self, self._tls, server_side=True, ssl_handshake_timeout=seconds)
        # Its first step now: what the client has sent would be read here by the time that a task takes it.
        waiting: asyncio.Future[Any] = begun.send(None)
        self._shaking = self.loop.create_task(self._shake_hands(transport, begun, waiting))

    async def _shake_hands(
        self, transport: asyncio.Transport, begun: Coroutine[Any, Any, Any], waiting: asyncio.Future[Any]
    ) -> None:
        await asyncio.wait([waiting])
        secured: asyncio.Transport | None = None
        try:
            begun.send(None)
        except StopIteration as end:
            secured = end.value
        except OSError:  # no TLS, too late, or gone
            secured = None
        if secured is None or secured.is_closing() or self._early is None:
            self._forget()
            transport.abort()
            return
        HttpToolsProtocol.connection_made(self, secured)  # it is counted already
        early, self._early = self._early, None
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._early = None
        super().connection_lost(exc)


class GatewayConfig(uvicorn.Config):
    """uvicorn's configuration, for these protocols."""

    def __init__(self, app: Any, **named: Any) -> None:
        super().__init__(app, http=GatewayProtocol, **named)
        self.tls: ssl.SSLContext | None = None

    def load(self) -> None:
        super().load()
        if self.ssl is not None:  # which uvicorn would begin before it has the protocol know of a connection
            self.tls, self.ssl = self.ssl, None
            self.http_protocol_class = TlsGatewayProtocol


def _written(problem: Problem) -> bytes:
    response = problem.response()
    lines = [STATUS_LINE[problem.status], b"connection: close\r\n"]
    lines += [b"%s: %s\r\n" % header for header in response.raw_headers]
    return b"".join([*lines, b"\r\n", bytes(response.body)])


def _group(address: str) -> str:
    """Returns what one client has: an IPv4 address, or a whole IPv6 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address
