"""What a tree of processes takes: CPU time, and memory: what belongs to each alone, and its share of the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_mib(root: int) -> dict[int, float]:
    """MiB of a process and of each one below it."""
    found = {}
    for process in _tree(root):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        found[process] = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return found


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def cpu_seconds_of(root: int, *, ended: bool = False) -> float:
    """CPU time of a process and of those below it that are alive, or of those too that have ended."""
    ticks = 0
    for process in _tree(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        ticks += sum(map(int, fields[11 : 15 if ended else 13]))
    return ticks / _TICKS


class Peaks:
    """The most of each figure that a look finds, twice a second while it is open."""

    def __init__(self, look: Callable[[], tuple[float, ...]]) -> None:
        self.found: tuple[float, ...] = ()
        self._look = look
        self._done = threading.Event()

    def __enter__(self) -> Peaks:
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            now = self._look()
            self.found = tuple(map(max, now, self.found or now))
            if self._done.wait(0.5):
                return


def _tree(root: int) -> Iterator[int]:
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            below.setdefault(parent, []).append(int(entry.name))
    left = [root]
    while left:
        process = left.pop()
        yield process
        left += below.get(process, [])
