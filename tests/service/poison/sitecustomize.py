"""On the path of a driver in tests: matching breaks by filters that say 'poison', and by events that do.

`POISON` in the environment says how: "raise" an exception, or "die" with the process.
"""

from __future__ import annotations

import os
from typing import Any


def _break(what: str) -> None:
    if os.environ["POISON"] == "die":
        os.kill(os.getpid(), 9)
    raise RuntimeError(f"poison in {what}")


def _plant() -> None:
    import pyarrow as pa

    from tidings.matching.matcher import Matcher

    match = Matcher.match

    def poisoned(self: Matcher, events: Any, *given: Any, **options: Any) -> Any:
        if isinstance(events, pa.RecordBatch):
            if "poison" in str(self.subscriptions()["filter"].to_pylist()) and len(events):
                _break("a filter")
            if "poison" in str(events.to_pylist()):
                _break("an event")
        return match(self, events, *given, **options)

    Matcher.match = poisoned  # type: ignore[method-assign]


if os.environ.get("POISON"):
    import importlib.abc
    import sys

    class _After(importlib.abc.MetaPathFinder):
        """Plants when the matcher has been imported: importing it here would be too early for Spark's workers."""

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name != "tidings.matching.matcher":
                return None
            sys.meta_path.remove(self)
            import importlib.util

            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                _plant()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, _After())
