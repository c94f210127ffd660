"""What happened, a line of JSON each: written to a file, read back, and compared when it happens again.

{"trace": 1, "arguments": ["SYSTEM", "--nodes", "8", …]}    the first line: `tidings simulate` with these makes it
[time_ms, "message", from, to, {"Name": [fields]}]          handed to the receiver
[time_ms, "undelivered", sender, to, {"Name": [fields]}]    nobody was there
[time_ms, "timer", node, tag]
[time_ms, "join" | "crash" | "ready", node]
[time_ms, "deliver", node, subscription, event]
[time_ms, "active", node, subscription]
[time_ms, "lost", from, to]
[time_ms, "drop", node, event]
[time_ms, "grow", node]
[time_ms, "violation", law, what]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tidings.errors import TidingsError
from tidings.systems.overlay import EventPath
from tidings.systems.protocols.effects import Id, Message, Tag
from tidings.systems.protocols.message_codec import plain

VERSION = 1


class TraceError(TidingsError):
    """A trace that cannot be read, or that did not happen again."""


class Trace:
    """Hands every line to `write`; `digest` distinguishes two traces without keeping them."""

    def __init__(self, write: Callable[[str], Any] | None = None) -> None:
        self._write = write
        self._hash = blake2b(digest_size=16)
        self.lines = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def begin(self, arguments: Sequence[str]) -> None:
        self._line({"trace": VERSION, "arguments": list(arguments)})

    def message(self, now_ms: int, sender: Id, to: Id, message: Message) -> None:
        self._line([now_ms, "message", sender, to, plain(message)])

    def undelivered(self, now_ms: int, sender: Id, to: Id, message: Message) -> None:
        self._line([now_ms, "undelivered", sender, to, plain(message)])

    def timer(self, now_ms: int, node: Id, tag: Tag) -> None:
        self._line([now_ms, "timer", node, plain(tag)])

    def note(self, now_ms: int, what: str, *about: Any) -> None:
        self._line([now_ms, what, *about])

    def _line(self, value: Any) -> None:
        text = json.dumps(value, separators=(",", ":"))
        self._hash.update(text.encode())
        self._hash.update(b"\n")
        self.lines += 1
        if self._write is not None:
            self._write(text + "\n")


class Followed(Trace):
    """A trace that hands messages and notes to the path of one event as well."""

    def __init__(self, trace: Trace | None, path: EventPath) -> None:
        super().__init__()
        self._trace = trace if trace is not None else Trace()
        self._path = path

    def message(self, now_ms: int, sender: Id, to: Id, message: Message) -> None:
        self._trace.message(now_ms, sender, to, message)
        self._path.message(now_ms, sender, to, message)

    def undelivered(self, now_ms: int, sender: Id, to: Id, message: Message) -> None:
        self._trace.undelivered(now_ms, sender, to, message)

    def timer(self, now_ms: int, node: Id, tag: Tag) -> None:
        self._trace.timer(now_ms, node, tag)

    def note(self, now_ms: int, what: str, *about: Any) -> None:
        self._trace.note(now_ms, what, *about)
        self._path.note(now_ms, what, *about)


def read_arguments(path: Path) -> list[str]:
    """The arguments of the command that makes this trace."""
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
        if first["trace"] != VERSION:
            raise TraceError(f"{path}: a trace of format {first['trace']}, and this reads {VERSION}")
        return [str(argument) for argument in first["arguments"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: no trace of a simulation: {error}") from error


class TraceComparison:
    """Takes the lines of a run and finds the first that differs from those of a trace."""

    def __init__(self, expected: Iterable[str]) -> None:
        self._expected = iter(expected)
        self._number = 0

    def write(self, line: str) -> None:
        self._number += 1
        wanted = next(self._expected, "")
        if line != wanted:
            raise TraceError(
                f"line {self._number} of the trace differs\n  then: {wanted.strip()}\n  now:  {line.strip()}"
            )

    def finish(self) -> None:
        left = next(self._expected, None)
        if left is not None:
            raise TraceError(f"the trace goes on after line {self._number}: {left.strip()}")
