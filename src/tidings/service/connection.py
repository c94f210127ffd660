"""A connection of the gateway, which the requests that come on it know."""

from __future__ import annotations

from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTION = "tidings.connection"  # where a request's scope has the connection that it came on


class Connection(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[CONNECTION] = self
