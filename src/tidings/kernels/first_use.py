"""Say that the kernels are being compiled: it takes seconds, and only after an installation.

A service is several processes, and so is Spark: the first of them that compiles says it for all. They tell each other
by a file beside the compiled kernels.
"""

# mypy: disable-error-code="misc, no-untyped-call, attr-defined"

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from numba.core import config, event

SAID_FOR_SECONDS = 600.0  # by one process for the others
_MARK = "tidings-compiles"


class Notice(event.Listener):
    """Hears of every compilation by numba; what numba finds in its cache is not compiled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard = False

    def on_start(self, event: Any) -> None:
        if not self._heard and (event.data["dispatcher"].py_func.__module__ or "").startswith("tidings."):
            self._heard = True
            if _is_first(self._folder / _MARK):
                print(
                    "Tidings compiles its kernels for this machine: once after an installation, some seconds.",
                    file=sys.stderr,
                )

    def on_end(self, event: Any) -> None:
        pass


def _is_first(mark: Path) -> bool:
    """Whether no other process has said it of late; where no file can be written, each says it for itself."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return _is_stale(mark)
    except OSError:
        return True
    return True


def _is_stale(mark: Path) -> bool:
    try:
        if time.time() - mark.stat().st_mtime < SAID_FOR_SECONDS:
            return False
        os.utime(mark)
    except OSError:
        pass
    return True


event.register("numba:compile", Notice(Path(config.CACHE_DIR or Path(__file__).parent / "__pycache__")))
