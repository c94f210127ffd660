"""A disk that writes down what SQLite writes and syncs, and shows what a power cut at any moment may leave of it.

    with Recorded() as disk:
        …                      # a store at work; `disk.mark(…)` after each answer
    for cut in disk.cuts(random):
        disk.leave(cut, folder, random)

What was synced is there. Of what was written to a file since its last sync, anything may be: each write wholly, in part
(by sectors) or not at all, and in any order. Until its directory is synced, a new file may be missing, and one that
was deleted may be there again; SQLite itself does that for new journals, when it syncs them.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import apsw
import pytest

SECTOR = 512


@dataclass(frozen=True)
class Operation:
    kind: Literal["write", "truncate", "sync", "delete", "names", "mark"]  # names: a directory was synced
    name: str = ""
    offset: int = 0  # or the size of a file that is cut; of a deletion 1 where the directory was synced
    data: bytes = b""
    mark: Any = None


@dataclass
class _File:
    """One file while a recording is played."""

    durable: bytearray = field(default_factory=bytearray)  # its content as it was last synced
    pending: list[Operation] = field(default_factory=list)
    is_there: bool = False
    was_there: bool = False  # when its directory was last synced

    def take(self, one: Operation) -> None:
        match one.kind:
            case "write" | "truncate":
                if not self.is_there:
                    self.durable = bytearray()
                self.pending.append(one)
                self.is_there = True
            case "sync":
                for write in self.pending:
                    _apply(self.durable, write)
                self.pending = []
                self.was_there = self.was_there or one.name.endswith(("-wal", "-journal"))
            case "delete":
                self.pending = []
                self.is_there = False
                self.was_there = self.was_there and not one.offset
            case "names":
                self.was_there = self.is_there

    def after_cut(self, draw: random.Random) -> bytes | None:
        if not self.is_there and not self.was_there:
            return None
        if self.is_there != self.was_there and draw.random() < 0.5:
            return None
        content = bytearray(self.durable)
        share = draw.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        kept = [_torn(write, draw) for write in self.pending if draw.random() < share]
        if draw.random() < 0.5:
            draw.shuffle(kept)
        for write in kept:
            _apply(content, write)
        return bytes(content)


def _apply(content: bytearray, write: Operation) -> None:
    if write.kind == "truncate":
        del content[write.offset :]
        return
    if len(content) < write.offset:
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data


def _torn(write: Operation, draw: random.Random) -> Operation:
    """The write, or now and then only some sectors of it from its beginning."""
    if write.kind != "write" or len(write.data) <= SECTOR or draw.random() < 0.7:
        return write
    sectors = draw.randrange(1, len(write.data) // SECTOR + 1)
    return Operation("write", write.name, write.offset, write.data[: sectors * SECTOR])


class Recorded(apsw.VFS):
    """SQLite's own file layer, with a recording of what goes through it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._patch = pytest.MonkeyPatch()
        super().__init__("recorded", "unix", makedefault=True)

    def __enter__(self) -> Self:
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self.operations.append(Operation("names", os.readlink(f"/proc/self/fd/{descriptor}")))

        self._patch.setattr(os, "fsync", synced)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self.unregister()

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return _RecordedFile(self, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:
        super().xDelete(name, sync_directory)
        self.operations.append(Operation("delete", name, int(sync_directory)))

    def mark(self, what: Any) -> None:
        """Note that something was answered."""
        self.operations.append(Operation("mark", mark=what))

    def cuts(self, count: int, draw: random.Random) -> list[int]:
        """Moments to cut the power at, half of them right after an answer."""
        answers = [at + 1 for at, one in enumerate(self.operations) if one.kind == "mark"]
        chosen = draw.sample(answers, min(len(answers), count // 2))
        return chosen + [draw.randrange(answers[0], len(self.operations) + 1) for _ in range(count - len(chosen))]

    def leave(self, cut: int, folder: Path, source: Path, draw: random.Random) -> Any:
        """Write to a folder what a cut may leave of another, and return the last mark before it."""
        files: dict[str, _File] = {}
        mark = None
        for one in self.operations[:cut]:
            if one.kind == "mark":
                mark = one.mark
            elif one.kind == "names":
                for name, file in files.items():
                    if os.path.dirname(name) == one.name:
                        file.take(one)
            else:
                files.setdefault(one.name, _File()).take(one)
        for name, file in files.items():
            content = file.after_cut(draw)
            if content is not None and Path(name).is_relative_to(source):
                target = folder / Path(name).relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        return mark


class _RecordedFile(apsw.VFSFile):
    def __init__(self, disk: Recorded, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("unix", name, flags)

    def _note(self, kind: Literal["write", "truncate", "sync"], offset: int = 0, data: bytes = b"") -> None:
        if self._name is not None:  # files without a name are SQLite's own, and gone with it
            self._disk.operations.append(Operation(kind, self._name, offset, data))

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._note("write", offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._note("truncate", size)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._note("sync")
