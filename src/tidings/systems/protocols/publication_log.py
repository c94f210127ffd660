"""What a dispatcher has published and not seen done, in a file: lines that are only ever added."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tidings.errors import TidingsError
from tidings.systems.protocols.effects import Event


class FileLog:
    """On the disk before `append` returns. What is done is struck out by a further line; opening it leaves them out."""

    def __init__(self, path: Path) -> None:
        self._pending: dict[str, Event] = {}
        if path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                self._read(path, number, line)
        kept = path.with_name(path.name + ".new")
        with kept.open("w", encoding="utf-8") as file:
            file.writelines(_line({"publish": event.id, "body": event.body}) for event in self._pending.values())
            file.flush()
            os.fsync(file.fileno())
        kept.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def _read(self, path: Path, number: int, line: str) -> None:
        try:
            match json.loads(line):
                case {"publish": str(id), "body": str(body)}:
                    self._pending[id] = Event(id, body)
                case {"done": str(id)}:
                    self._pending.pop(id, None)
                case _:
                    raise ValueError("it says neither what was published nor what is done")
        except ValueError as error:
            if number < sum(1 for _ in path.open(encoding="utf-8")):  # the last line may have been cut by a crash
                raise TidingsError(f"{path}, line {number}: {error}; move the file away to begin anew") from None

    def append(self, event: Event) -> None:
        self._pending[event.id] = event
        self._write({"publish": event.id, "body": event.body})
        os.fsync(self._file.fileno())

    def settle(self, event: str) -> None:
        if self._pending.pop(event, None) is not None:
            self._write({"done": event})  # if a crash loses this, the event is sent again, and told once

    def pending(self) -> list[Event]:
        return list(self._pending.values())

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, str]) -> None:
        self._file.write(_line(line))
        self._file.flush()


def _line(value: dict[str, str]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
