"""What a tree of processes keeps in memory: what belongs to each alone, and its share of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


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


def cpu_seconds_of(root: int) -> float:
    """CPU time of a process and of those below it that are alive."""
    ticks = 0
    for process in _tree(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


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
