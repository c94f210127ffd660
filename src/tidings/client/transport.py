"""What both clients ask of httpx2, and how they read its responses and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx2

from tidings.client.calls import ServiceCall
from tidings.client.connection_settings import ConnectionSettings
from tidings.client.flows import LostResponse
from tidings.client.responses import Response, ServiceError

CONNECT_SECONDS = 5.0
STREAM_SECONDS = 60.0  # without a byte, though a stream that has nothing to say sends comments
MAX_ERROR_BYTES = 1 << 20

_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


def options(settings: ConnectionSettings, timeout: float, transport: Any) -> dict[str, Any]:
    """Arguments of httpx2's clients. No redirects: they would take the token elsewhere."""
    headers = {"user-agent": "tidings-client", "accept": "application/json, application/problem+json"}
    if settings.token is not None:
        headers["authorization"] = f"Bearer {settings.token}"
    return {
        "base_url": settings.url,
        "headers": headers,
        "timeout": httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
        "limits": httpx2.Limits(max_connections=200, max_keepalive_connections=50),
        "follow_redirects": False,
        "trust_env": not settings.local,
        "transport": transport,
    }


def request_of(client: httpx2.Client | httpx2.AsyncClient, call: ServiceCall[Any], timeout: float) -> httpx2.Request:
    headers = dict(call.headers)
    if call.body is not None:
        headers["content-type"] = call.content_type
    patience = httpx2.Timeout(timeout + call.seconds, connect=CONNECT_SECONDS)
    return client.build_request(
        call.method, call.path, params=call.query or None, content=call.body, headers=headers, timeout=patience
    )


def response_of(response: httpx2.Response, body: bytes) -> Response:
    return Response(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


@contextlib.contextmanager
def losses() -> Iterator[list[LostResponse]]:
    """Collects the loss, if the block has one, instead of raising."""
    lost: list[LostResponse] = []
    try:
        yield lost
    except (httpx2.UnsupportedProtocol, httpx2.ProxyError, httpx2.LocalProtocolError) as error:
        raise ServiceError(0, "cannot ask", str(error)) from error
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        lost.append(LostResponse(reason, sent=not isinstance(error, _NEVER_SENT)))
