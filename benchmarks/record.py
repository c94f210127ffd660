"""Result files: rows of figures with what is needed to judge and repeat them."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_VERSIONS = (
    "numpy",
    "pyarrow",
    "sqlglot",
    "google-re2",
    "numba",
    "apsw",
    "duckdb",
    "polars",
    "rtree",
    "lxml",
    "pyspark",
    "fastapi",
    "uvicorn",
    "uvloop",
)


Row = dict[str, Any]


def write(
    name: str, question: str, rows: list[Row], *, same: tuple[str, ...] = (),
    stays: Callable[[Row, Row], bool] = lambda earlier, new: False,
) -> Path:  # fmt: skip
    """Write one benchmark's rows to its result file.

    With `same`, rows of an earlier run stay that differ from every new one in these keys: a part
    can then be measured again. Of those that do not differ, those stay of which `stays` says so. Each row says where
    and when it was measured.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    now = circumstances()
    rows = [row | {"date": now["date"], "commit": now["commit"], "load": now["machine"]["load"]} for row in rows]
    if same and path.exists():
        measured = {tuple(row[key] for key in same): row for row in rows}
        earlier = json.loads(path.read_text())["rows"]
        replaced = [measured.get(tuple(row[key] for key in same)) for row in earlier]
        kept = [row for row, new in zip(earlier, replaced, strict=True) if new is None or stays(row, new)]
        rows = kept + rows
        rows.sort(key=lambda row: [row[key] for key in same])
    result = {"benchmark": name, "question": question, **now, "rows": rows}
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def circumstances() -> dict[str, Any]:
    """Commit, machine and versions."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "load": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version()} | dict(_installed()),
    }


def _installed() -> Iterator[tuple[str, str]]:
    for name in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cpu_seconds(work: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """Median CPU seconds of some work, and the spread (largest less smallest) as a share of it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    median = statistics.median(times)
    return median, (max(times) - min(times)) / median
