"""Say, once a process, that the kernels are being compiled: it takes seconds, and only after an installation."""

# mypy: disable-error-code="misc, no-untyped-call"

from __future__ import annotations

import sys
from typing import Any

from numba.core import event


class Notice(event.Listener):
    """Hears of every compilation by numba; what numba finds in its cache is not compiled."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        if not self.said and event.data["dispatcher"].py_func.__module__.startswith("tidings."):
            self.said = True
            print(
                "Tidings compiles its kernels for this machine: once after an installation, some seconds.",
                file=sys.stderr,
            )

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", Notice())
