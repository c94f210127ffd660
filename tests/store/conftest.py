"""A disk that can be watched and broken: SQLite's own file layer, with ours in front."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest


class Disk(apsw.VFS):
    """Knows what was synced, and fails on demand."""

    def __init__(self) -> None:
        self.synced: dict[str, bytes] = {}  # each file as it was when it was last synced
        self.full_after: int | None = None  # bytes of the write-ahead log that still find room
        self.syncs_fail = False
        super().__init__("watched", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return _File(self, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:
        super().xDelete(name, sync_directory)
        self.synced.pop(name, None)  # a log syncs its directory when it is opened, and nothing is deleted later

    def after_power_cut(self, log: Path, copy: Path) -> Path:
        """A copy of a log with what was synced alone; the file that is never synced is there, or is not."""
        copy.mkdir()
        for name, content in self.synced.items():
            if Path(name).parent == log:
                (copy / Path(name).name).write_bytes(content)
        shutil.copy(log / "acknowledged", copy)
        return copy


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.full_after is not None and self._name.endswith("-wal"):
            if len(data) > self._disk.full_after:
                raise apsw.FullError("no room")
            self._disk.full_after -= len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._disk.syncs_fail:
            error = apsw.IOError("sync failed")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        super().xSync(flags)
        self._disk.synced[self._name] = Path(self._name).read_bytes()


@pytest.fixture
def disk() -> Iterator[Disk]:
    watched = Disk()
    yield watched
    watched.unregister()
