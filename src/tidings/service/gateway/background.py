"""Work that is done again and again for as long as the gateway serves, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidings.errors import TidingsError

_logger = logging.getLogger(__name__)


class Background:
    """Does some work every so many seconds, from `start` until `stop`."""

    def __init__(self, name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        self._name = name
        self._seconds = seconds
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._work()
            except (TidingsError, OSError) as error:  # of a store, which may be well again the next time
                _logger.warning("%s: %s", self._name, error)
            except Exception:  # our mistake; to stop because of it would be another, which nobody would notice
                _logger.exception("%s failed", self._name)
