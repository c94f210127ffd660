"""Watches the mailboxes that somebody waits for, and wakes those who wait when the driver has loaded something."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from tidings.errors import TidingsError
from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway.mailbox_reading import Mailboxes, domain_key_of
from tidings.service.gateway.scheduling import FairThreads
from tidings.store.catalogue import SubscriptionRow

POLLED_AT_ONCE = 100  # domains that are polled as often as the settings say; with more, each is polled less often
ASKED_SECONDS = 1.0  # after which mailboxes are read although their file has not changed
_RETRY_SECONDS = 1.0
_logger = logging.getLogger(__name__)
_Mark: TypeAlias = tuple[tuple[int, int, int], ...]


class MailboxWatch:
    """Belongs to the event loop; the mailboxes are read in threads."""

    def __init__(self, data: DataDirectory, mailboxes: Mailboxes, poll_seconds: float, threads: FairThreads) -> None:
        self._data = data
        self._mailboxes = mailboxes
        self._seconds = poll_seconds
        self._threads = threads
        self._waiters: dict[int, set[asyncio.Event]] = {}  # by subscription's key
        self._keys: dict[str, dict[int, int]] = {}  # domain's key → number of a filter → subscription's key
        self._numbers: dict[int, set[int]] = {}  # the other way round
        self._poller: asyncio.Task[None] | None = None
        self._reading: dict[str, asyncio.Task[None]] = {}  # by domain's key
        self._seen: dict[str, tuple[_Mark, float]] = {}  # files of mailboxes as they were last seen, and when
        self._watched: set[str] = set()  # domains that are polled whether anybody waits or not
        self.on_woken: Callable[[str, Sequence[int]], Awaitable[None]] | None = None

    @contextlib.contextmanager
    def waiting(self, row: SubscriptionRow) -> Iterator[asyncio.Event]:
        """Gives an event that is set when there may be something new for a subscription."""
        event = asyncio.Event()
        key = domain_key_of(row)
        self._waiters.setdefault(row.key, set()).add(event)
        keys = self._keys.setdefault(key, {})
        numbers = self._numbers.setdefault(row.key, set())
        for filter in row.filters:
            keys[filter.number] = row.key
            numbers.add(filter.number)
        self._start_polling(key)
        try:
            yield event
        finally:
            theirs = self._waiters[row.key]
            theirs.discard(event)
            if not theirs:
                del self._waiters[row.key]
                for number in self._numbers.pop(row.key):
                    del keys[number]

    def nudge(self, key: int) -> None:
        """Wakes those who wait for a subscription: it was changed."""
        for event in self._waiters.get(key, ()):
            event.set()

    def nudge_all(self) -> None:
        for key in list(self._waiters):
            self.nudge(key)

    def watch(self, key: str) -> None:
        """Polls a domain's mailboxes from now on, for `on_woken`, whether anybody waits or not."""
        self._watched.add(key)
        self._start_polling(key)

    def unwatch(self, key: str) -> None:
        """Polls a domain's mailboxes only while somebody waits."""
        self._watched.discard(key)

    @property
    def polled(self) -> frozenset[str]:
        """The domains whose mailboxes are polled."""
        return frozenset([*(key for key, numbers in self._keys.items() if numbers), *self._watched])

    def _start_polling(self, key: str) -> None:
        self._seen.pop(key, None)  # it is read once, whatever has changed
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="mailboxes")

    async def stop(self) -> None:
        tasks = [*self._reading.values(), *([] if self._poller is None else [self._poller])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self) -> None:
        """Reads the mailboxes whose files have changed: to look at a file costs far less than to query it.

        A file may change twice within one tick of the clock that dates it, so all are read now and then.
        """
        loop = asyncio.get_running_loop()
        while keys := self.polled:
            try:
                for key in await self._threads.run(self._changed, keys - self._reading.keys()):
                    self._reading[key] = loop.create_task(self._read(key), name=f"mailboxes {key}")
            except OSError as error:
                _logger.warning("cannot look at the mailboxes: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(self._seconds * max(1.0, len(keys) / POLLED_AT_ONCE))

    def _changed(self, keys: Iterable[str]) -> list[str]:
        changed = []
        now = time.monotonic()
        for key in keys:
            mark = _mark(self._data.domains / key / "mailboxes.sqlite")
            seen, at = self._seen.get(key, ((), 0.0))
            if mark != seen or now - at > ASKED_SECONDS:
                self._seen[key] = mark, now  # before it is read: what comes meanwhile changes it again
                changed.append(key)
        return changed

    async def _read(self, key: str) -> None:
        try:
            numbers = await self._threads.run(self._mailboxes.woken, key)
            keys = self._keys.get(key, {})
            for owner in {keys[number] for number in numbers if number in keys}:
                self.nudge(owner)
            if numbers and self.on_woken is not None and key in self._watched:
                await self.on_woken(key, numbers)
        except (TidingsError, OSError) as error:
            _logger.warning("cannot read the mailboxes of %s: %s", key, error)
            await asyncio.sleep(_RETRY_SECONDS)
            self._seen.pop(key, None)
        finally:
            del self._reading[key]


def _mark(path: Path) -> _Mark:
    """Returns what differs after an SQLite file was written to."""
    marks: list[tuple[int, int, int]] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            found = file.stat()
            marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
    return tuple(marks)
