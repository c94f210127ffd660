"""A connection of the gateway: lets a response see to it that what it writes is read, or break off.

A server of HTTP buffers what a client does not read, and closes a connection only when all of that is sent: a
client that never reads would keep it open for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "tidings.transport"


class Connection(HttpToolsProtocol):
    """A connection whose requests know their transport."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast(dict[str, Any], self.scope)
        scope["extensions"] = {**scope.get("extensions", {}), _EXTENSION: self.transport}


def transport_of(scope: Scope) -> asyncio.Transport | None:
    """The transport of a request; None where another server than ours runs the application."""
    found: asyncio.Transport | None = scope.get("extensions", {}).get(_EXTENSION)
    return found
