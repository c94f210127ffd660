"""Waits for what happens in another thread or process.

A test waits for the thing itself. A wait gives up only after `LAST_RESORT_SECONDS`, which is far longer than the
slowest machine needs: it ends a test that would hang, and says nothing about speed. Bounds on time belong to
`make faults`, `make torture` and the benchmarks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

LAST_RESORT_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.002, 0.05  # between two looks

Found = TypeVar("Found")


def until(condition: Callable[[], Found], why: str | Callable[[], str] = "it never happened") -> Found:
    """Waits until the condition returns something true, and returns that."""
    give_up = time.monotonic() + LAST_RESORT_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up, why if isinstance(why, str) else why()
        time.sleep(pause)
        pause = min(1.5 * pause, _PAUSE_SECONDS_MAX)
    return found


async def until_async(condition: Callable[[], Found], why: str = "it never happened") -> Found:
    """Waits like `until`, and lets the event loop run meanwhile."""
    give_up = time.monotonic() + LAST_RESORT_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up, why
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, _PAUSE_SECONDS_MAX)
    return found
