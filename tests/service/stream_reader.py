"""A stream of Server-Sent Events as a client reads it, for tests."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.waiting import until


class Reading:
    """A stream as a client reads it, in a thread of its own."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.sent: list[dict[str, str]] = []
        self.comments = 0
        self._lines = lines
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            for line in self._lines:
                name, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    fields[name] = value
                elif "data" in fields:
                    self.sent.append(fields)
                    fields = {}
        except Exception:
            pass  # the connection was closed
        self.ended.set()

    def positions(self, count: int) -> list[int]:
        """Those of the notifications, when there are so many."""
        self.wait(lambda: len(self.all("notification")) >= count)
        return [sent["position"] for sent in self.all("notification")]

    def all(self, event: str) -> list[dict[str, Any]]:
        """The data of the events of one kind."""
        return [json.loads(sent["data"]) for sent in list(self.sent) if sent["event"] == event]

    def wait(self, condition: Callable[[], Any]) -> None:
        until(condition, lambda: f"not among what was sent: {self.sent}")


@contextlib.contextmanager
def streaming(gateway: Any, id: str, ack: str | None = None, **headers: str) -> Iterator[Reading]:
    path, query = f"/v1/subscriptions/{id}/stream", {} if ack is None else {"ack": ack}
    with gateway.client.stream("GET", path, params=query, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        try:
            yield Reading(answer.iter_lines())
        finally:  # a socket that a thread still reads from is not closed by closing it
            with contextlib.suppress(OSError):
                answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
