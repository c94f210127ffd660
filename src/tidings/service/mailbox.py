"""What a subscription has waiting, over all the filters it has had; and waking who waits for more.

The driver loads matches into a domain's mailboxes under the number of a filter row. A subscription has the
positions of each of its rows that lie in the row's validity. The validities are disjoint and in order, so
that one cursor serves for all rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from tidings.errors import TidingsError
from tidings.service.data_directory import DataDirectory
from tidings.service.event_texts import EventTexts
from tidings.service.selecting import Selecting
from tidings.service.settings import Settings
from tidings.store.catalogue import SubscriptionRow
from tidings.store.deliveries import DeadLetter, Deliveries
from tidings.store.notifications import Notifications
from tidings.store.shared_progress import SharedProgress

OVERFLOWED = "the mailbox was full: too many notifications waited to be acknowledged"
RETAINED = "the event was removed from the log, by retention or in a repair, before it was delivered"
_TOGETHER = 10_000  # dead letters that are written in one transaction
_ALL = 1 << 30  # notifications: a mailbox has a bound of its own
_logger = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """A notification that can be delivered."""

    position: int
    text: str  # as JSON
    what: str = "event"  # "event", or "nodes" where those are asked for

    @property
    def member(self) -> str:
        """It as a member of a JSON object."""
        return f'"{self.what}":{self.text}'


class Taken(NamedTuple):
    """What was read of a mailbox: what can be delivered, and how far the reading came."""

    waiting: list[Waiting]
    after: int  # the position to go on after


@dataclass
class _Box:
    """The mailboxes of one domain."""

    store: Notifications
    loads: int  # up to which load who waits was woken


class Mailboxes:
    """Reads the mailboxes of all domains. The reading methods are for threads, the waking ones for the loop."""

    def __init__(
        self, data: DataDirectory, deliveries: Deliveries, texts: EventTexts, selecting: Selecting, settings: Settings,
        executor: Executor,
    ) -> None:  # fmt: skip
        self._data = data
        self._deliveries = deliveries
        self._texts = texts
        self._selecting = selecting
        self._settings = settings
        self._executor = executor
        self._boxes: dict[str, _Box] = {}
        self._opening = threading.Lock()
        self._waiters: dict[int, set[asyncio.Event]] = {}  # by subscription's key
        self._keys: dict[str, dict[int, int]] = {}  # domain's key → number of a filter → subscription's key
        self._numbers: dict[int, set[int]] = {}  # the other way round
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self.on_woken: Callable[[str, Sequence[int]], Awaitable[None]] | None = None
        self._watched: set[str] = set()  # domains that are looked at whether anybody waits or not

    def close(self) -> None:
        for box in self._boxes.values():
            box.store.close()

    def forget(self, key: str) -> None:
        """Let go of a domain's mailboxes: it is gone, and another may come in its place."""
        with self._opening:
            box = self._boxes.pop(key, None)
        if box is not None:
            box.store.close()

    # -- reading, in threads ------------------------------------------------------------------------

    def take(self, row: SubscriptionRow, after: int, limit: int, max_bytes: int | None = None) -> Taken:
        """The next notifications of a subscription after a position, in order: so many bytes, and one more."""
        waiting: list[Waiting] = []
        for position, text in self._events(row, self.positions(row, after, limit), max_bytes):
            if text is not None:
                waiting.append(self._wanted(row, position, text))
            elif position > self._deliveries.cursor(row.key):  # it is lost, and that is not to go unnoticed
                self._deliveries.dead(row.key, position, RETAINED)
            after = position
        return Taken(waiting, after)

    def _events(
        self, row: SubscriptionRow, positions: Sequence[int], max_bytes: int | None = None
    ) -> Iterator[tuple[int, str | None]]:
        """Positions and their events, up to the one that makes too many bytes."""
        left = self._settings.max_answer_bytes if max_bytes is None else max_bytes
        for position, text in zip(positions, self._texts.of(positions, domain_key_of(row)), strict=True):
            yield position, text
            left -= len(text or "")
            if left < 0:
                return

    def positions(self, row: SubscriptionRow, after: int, limit: int) -> list[int]:
        box = self._box(domain_key_of(row))
        if box is None:
            return []
        found: list[int] = []
        # The newest filter first: what is loaded between two reads then is in the later one, and what an older filter
        # has before is not passed over.
        for filter in reversed(row.filters):
            start, end = filter.deliver_from, filter.valid_to
            if start is None or (end is not None and end - 1 <= max(after, start - 1)):
                continue
            after_ = max(after, start - 1)
            if end is None:
                found += box.store.positions_of(filter.number, after=after_, limit=limit)
            else:
                found += box.store.positions_of(filter.number, after=after_, before=end, limit=limit)
        found.sort()
        return found[:limit]

    def acknowledge(self, row: SubscriptionRow, position: int) -> None:
        """Note that a subscriber has all up to a position, of what was there to be had: what is matched later comes."""
        if not self.positions(row, position - 1, 1):
            there = self.positions(row, self._deliveries.cursor(row.key), _ALL)
            position = there[-1] if there else -1
        self._deliveries.acknowledge(row.key, position)

    def reached(self, key: str) -> int:
        """All events of a domain before this position were matched; 0 where its stream has not begun."""
        box = self._box(key)
        reached = 0 if box is None else box.store.resume()
        shared = self._data.shared.progress
        if shared.exists() and not (self._data.domains / key / "query").exists():
            with SharedProgress(shared, read_only=True) as progress:
                reached = max(reached, progress.resume)
        return reached

    def waiting_before(self, key: str, position: int) -> list[int]:
        """The filters of a domain, by number, that have something waiting before a position."""
        box = self._box(key)
        if box is None:
            return []
        _, numbers = box.store.woken(-1)  # all that have anything
        return [number for number in numbers if box.store.positions_of(number, before=position, limit=1)]

    def redriven(self, row: SubscriptionRow, limit: int, max_bytes: int | None = None) -> list[Waiting]:
        """What was dead and is to be delivered once more, the first of it: so many bytes, and one more."""
        return self.redriven_at(row, self._deliveries.redriven(row.key, limit=limit), max_bytes)

    def redriven_at(
        self, row: SubscriptionRow, positions: Sequence[int], max_bytes: int | None = None
    ) -> list[Waiting]:
        waiting = []
        for position, text in self._events(row, positions, max_bytes):
            if text is None:
                self._deliveries.dead(row.key, position, RETAINED)
            else:
                waiting.append(self._wanted(row, position, text))
        return waiting

    def _wanted(self, row: SubscriptionRow, position: int, text: str) -> Waiting:
        """What of an event the subscriber wants."""
        if row.select == "nodes":
            return Waiting(position, self._selecting.nodes(row, position, text), "nodes")
        return Waiting(position, text)

    def dead_letters(
        self, row: SubscriptionRow, after: int, limit: int
    ) -> tuple[list[tuple[DeadLetter, str | None]], bool]:
        """What could not be delivered, with the events that are still there; and whether there are more."""
        self.take_in_overflow(row)
        letters = self._deliveries.dead_letters(row.key, after, limit + 1)
        events = self._events(row, [letter.position for letter in letters[:limit]])
        shown = [(letter, text) for letter, (_, text) in zip(letters, events, strict=False)]
        return shown, len(shown) < len(letters)

    def take_in_overflow(self, row: SubscriptionRow) -> None:
        """Have what found no room in a mailbox be dead letters, once: how far that came is a cursor of its own."""
        box = self._box(domain_key_of(row))
        if box is None or row.replaying:
            return  # a history is loaded late, and below what may have overflowed already
        for filter in row.filters:
            start, end = filter.deliver_from, filter.valid_to
            while True:
                seen = self._deliveries.cursor(-filter.number)
                over = [one.position for one in box.store.overflowed(filter.number, after=seen, limit=_TOGETHER)]
                if not over:
                    break
                dead = [at for at in over if start is not None and start <= at and (end is None or at < end)]
                self._deliveries.dead_many(row.key, dead, OVERFLOWED, cursors={-filter.number: over[-1]})

    def _box(self, key: str) -> _Box | None:
        box = self._boxes.get(key)
        if box is None:
            with self._opening:
                path = self._data.domains / key / "mailboxes.sqlite"
                if key not in self._boxes and path.exists():  # the driver makes it
                    store = Notifications(path)
                    self._boxes[key] = _Box(store, 0)  # whatever is in it is new to who waits
                box = self._boxes.get(key)
        return box

    # -- waking, in the loop -----------------------------------------------------------------------

    @contextlib.contextmanager
    def waiting(self, row: SubscriptionRow) -> Iterator[asyncio.Event]:
        """An event that is set when there may be something new for a subscription."""
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
        """Wake who waits for a subscription: it was changed."""
        for event in self._waiters.get(key, ()):
            event.set()

    def nudge_all(self) -> None:
        for key in list(self._waiters):
            self.nudge(key)

    def watch(self, key: str) -> None:
        """Look at a domain's mailboxes from now on, for `on_woken`, whether anybody waits or not."""
        self._watched.add(key)
        self._start_polling(key)

    @property
    def looked_at(self) -> frozenset[str]:
        """The domains whose mailboxes are looked at, again and again."""
        return frozenset(self._pollers)

    def unwatch(self, key: str) -> None:
        """Look at a domain's mailboxes only while somebody waits."""
        self._watched.discard(key)

    def _start_polling(self, key: str) -> None:
        if key not in self._pollers:
            self._pollers[key] = asyncio.get_running_loop().create_task(self._poll(key), name=f"mailboxes {key}")

    async def stop(self) -> None:
        for task in self._pollers.values():
            task.cancel()
        await asyncio.gather(*self._pollers.values(), return_exceptions=True)

    async def _poll(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._keys.get(key) or key in self._watched:
                try:
                    numbers = await loop.run_in_executor(self._executor, self._woken, key)
                    self._wake(key, numbers)
                    if numbers and self.on_woken is not None and key in self._watched:
                        await self.on_woken(key, numbers)
                    await asyncio.sleep(self._settings.poll_seconds)
                except (TidingsError, OSError) as error:
                    _logger.warning("cannot look at the mailboxes of %s: %s", key, error)
                    await asyncio.sleep(1.0)
        finally:
            if self._pollers.get(key) is asyncio.current_task():
                del self._pollers[key]

    def _woken(self, key: str) -> Sequence[int]:
        box = self._box(key)
        if box is None:
            return ()
        box.loads, numbers = box.store.woken(box.loads)
        return numbers

    def _wake(self, key: str, numbers: Sequence[int]) -> None:
        keys = self._keys.get(key, {})
        for owner in {keys[number] for number in numbers if number in keys}:
            self.nudge(owner)


def domain_key_of(row: SubscriptionRow) -> str:
    return f"{row.tenant}.{row.domain}"
