"""Server-Sent Events, read as their bytes come (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

MAX_BUFFERED = 16 << 20  # characters of one event: past that the other side is no stream of ours


@dataclass(frozen=True)
class ServerSent:
    """One event of the stream; `id` is the last that was seen, which a reconnect names."""

    event: str
    data: str
    id: str


class ServerSentParser:
    """Feed it bytes, in whatever pieces they arrive; returns the events that are complete."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry_seconds: float | None = None  # the pause before a reconnect that the server asks for
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest = ""
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerSent]:
        text = self._rest + self._decoder.decode(piece)
        held = "\r" if text.endswith("\r") else ""  # half of a line's end, perhaps
        *lines, self._rest = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest += held
        if len(self._rest) + self._size > MAX_BUFFERED:
            raise ValueError(f"an event of the stream has more than {MAX_BUFFERED} characters")
        return [sent for sent in map(self._line, lines) if sent is not None]

    def _line(self, line: str) -> ServerSent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
                self._size += len(value)
            case "id" if "\0" not in value:
                self.last_id = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry_seconds = int(value) / 1000
        return None

    def _dispatch(self) -> ServerSent | None:
        event, data = self._event or "message", self._data
        self._event, self._data, self._size = "", [], 0
        return ServerSent(event, "\n".join(data), self.last_id) if data else None
