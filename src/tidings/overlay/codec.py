"""Messages as JSON, on the wire and in traces.

    named tuple   {"Name": [field, …]}
    tuple         [item, …]
    int, float, str, bool, null   themselves

A reader knows the names it accepts, and refuses others, wrong numbers of fields and values nested too deep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tidings.errors import TidingsError
from tidings.overlay.core import Event, Message

MAX_DEPTH = 12


class MessageError(TidingsError):
    """A message that is not in the language of the overlay."""


class Codec:
    """Writes any message and reads those of the given kinds back."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._kinds = {kind.__name__: kind for kind in (*kinds, Event)}
        self._lengths = {name: len(kind._fields) for name, kind in self._kinds.items()}  # type: ignore[attr-defined]

    def encode(self, message: Message) -> str:
        return json.dumps(plain(message), separators=(",", ":"))

    def decode(self, text: str | bytes) -> Message:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"message: no JSON: {error}") from None
        return self.from_plain(read)

    def from_plain(self, read: Any, depth: int = 0) -> Message:
        if depth > MAX_DEPTH:
            raise MessageError(f"message: nested deeper than {MAX_DEPTH}")
        if isinstance(read, list):
            return tuple(self.from_plain(item, depth + 1) for item in read)
        if not isinstance(read, dict):
            return read
        if len(read) != 1:
            raise MessageError(f"message: an object has one key, the name of a message, not {len(read)}")
        ((name, fields),) = read.items()
        kind = self._kinds.get(name)
        if kind is None or not isinstance(fields, list) or len(fields) != self._lengths[name]:
            raise MessageError(f"message: unknown, or with the wrong fields: {name[:40]!r}")
        return kind(*(self.from_plain(field, depth + 1) for field in fields))


def plain(value: Any) -> Any:
    """A message in JSON's own types."""
    if isinstance(value, tuple):
        items = [plain(item) for item in value]
        return {type(value).__name__: items} if hasattr(value, "_fields") else items
    assert value is None or isinstance(value, int | float | str), f"{value!r} cannot be part of a message"
    return value
