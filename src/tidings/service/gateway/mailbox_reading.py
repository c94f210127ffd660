"""What a subscription has waiting, over all the filters it has had, with the texts of the events.

The driver loads matches into a domain's mailboxes under the number of a filter row. A subscription has the
positions of each of its rows that lie in the row's validity. The validities are disjoint and in order, so
that one cursor serves for all rows.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidings.service.data.data_directory import SetAside
from tidings.service.gateway.filter_evaluation import NodeSelection
from tidings.service.gateway.gateway_stores import Stores
from tidings.store.catalogue import SubscriptionRow
from tidings.store.log.log_errors import LogRangeError
from tidings.store.log.log_reader import LogReader
from tidings.store.log.page import Page
from tidings.store.mailboxes.deliveries import DeadNotification
from tidings.store.mailboxes.notifications import Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

OVERFLOWED = "the mailbox was full: too many notifications waited to be acknowledged"
RETAINED = "the event was removed from the log, by retention or in a repair, before it was delivered"
_DEAD_AT_ONCE = 10_000  # dead letters that are written in one transaction
_ALL = 1 << 30  # notifications: mailboxes have their own limit
_CACHED_CHARACTERS = 16 << 20  # most of what is delivered is new, and is read by many at once
_READ_SPAN = 256  # positions that one read of the log may span


class _Texts(NamedTuple):
    """The texts of one page."""

    first: int
    end: int
    domain: str
    texts: list[str]

    def has(self, position: int) -> bool:
        return self.first <= position < self.end


class EventTexts:
    """Reads the texts of events, and keeps the pages that were read last. Threads may share it.

    A read holds its current page, and reads on as its caller continues. The cache only saves reading a page again that
    another has just read: what is in it never changes a result.
    """

    def __init__(self, log: LogReader, *, cached_characters: int = _CACHED_CHARACTERS) -> None:
        self._log = log
        self._max = cached_characters
        self._pages: OrderedDict[int, _Texts] = OrderedDict()  # by first position, the last used last
        self._firsts: list[int] = []  # of those pages, in order
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._lock = threading.Lock()  # of the cache only: no read of the log waits for another

    def of(self, positions: Sequence[int], domain: str) -> Iterator[str | None]:
        """Yields the texts at ascending positions, read page by page as the caller continues.

        None stands for an event that the log does not have: retention has removed it, or a repair has given it up.
        """
        page: _Texts | None = None
        for position, read in self._reads(positions, domain):
            if page is None or not page.has(position):
                page = self._cached(position)
            if page is None:
                page = self._advanced(read, position)
            if page is None or not page.has(position):  # the read has passed it, or reached one that was removed
                page = self._advanced(self._log.pages(position, position + 1, domain=domain), position)
            yield None if page is None or page.domain != domain else page.texts[position - page.first]

    def positions(self, domain: str, start: int, end: int | None = None) -> Iterator[int]:
        """Yields the positions of a domain's events from `start` to `end`, or to the end of the log."""
        last = self._log.end
        for first, count, _ in self._log.parts(
            max(start, self._log.start), last if end is None else min(end, last), domain
        ):
            yield from range(first, first + count)

    def _reads(self, positions: Sequence[int], domain: str) -> Iterator[tuple[int, Iterator[Page]]]:
        """Yields each position with the read of the log that spans it, which begins when it is first needed."""
        read: Iterator[Page] = iter(())
        end = -1
        for at, position in enumerate(positions):
            if position >= end:
                last = bisect.bisect_left(positions, position + _READ_SPAN, lo=at) - 1
                end = positions[last] + 1
                read = self._log.pages(position, end, domain=domain)
            yield position, read

    def _advanced(self, read: Iterator[Page], position: int) -> _Texts | None:
        """Returns the page of a position if a read that has not passed it reaches it."""
        try:
            for page in read:
                if page.end > position:
                    return self._kept(page)
        except LogRangeError:
            pass
        return None

    def _cached(self, position: int) -> _Texts | None:
        with self._lock:
            at = bisect.bisect_right(self._firsts, position) - 1
            page = self._pages[self._firsts[at]] if at >= 0 else None
            if page is None or not page.has(position):
                return None
            self._pages.move_to_end(page.first)
            return page

    def _kept(self, page: Page) -> _Texts:
        kept = _Texts(page.first, page.end, page.domain, page.texts())
        with self._lock:
            if page.first not in self._pages:
                bisect.insort(self._firsts, page.first)
                self._pages[page.first] = kept
                self._sizes[page.first] = page.length
                self._size += page.length
            while self._size > self._max and len(self._pages) > 1:
                gone, _ = self._pages.popitem(last=False)
                self._size -= self._sizes.pop(gone)
                del self._firsts[bisect.bisect_left(self._firsts, gone)]
        return kept


class Waiting(NamedTuple):
    """A notification that can be delivered."""

    position: int
    text: str  # as JSON
    what: str = "event"  # "event", or "nodes" if the subscription selects those

    @property
    def member(self) -> str:
        """The notification as a member of a JSON object."""
        return f'"{self.what}":{self.text}'


class Taken(NamedTuple):
    """What was read of a mailbox: what can be delivered, and up to where."""

    waiting: list[Waiting]
    after: int  # the position to continue after


@dataclass
class _Box:
    """The mailboxes of one domain."""

    store: Notifications
    loads: int  # the last load that was reported by `woken`


class Mailboxes:
    """Reads the mailboxes of all domains, in threads."""

    def __init__(self, stores: Stores, texts: EventTexts, selection: NodeSelection) -> None:
        self._data = stores.data
        self._deliveries = stores.deliveries
        self._settings = stores.settings
        self._texts = texts
        self._selection = selection
        self._boxes: dict[str, _Box] = {}
        self._opening = threading.Lock()

    def close(self) -> None:
        for box in self._boxes.values():
            box.store.close()

    def forget(self, key: str) -> None:
        """Closes the mailboxes of a domain that was removed; another may take its name."""
        with self._opening:
            box = self._boxes.pop(key, None)
        if box is not None:
            box.store.close()

    def take(self, row: SubscriptionRow, after: int, limit: int, max_bytes: int | None = None) -> Taken:
        """Returns the next notifications after a position, in order; only the last may exceed `max_bytes`."""
        waiting: list[Waiting] = []
        for position, text in self._events(row, self.positions(row, after, limit), max_bytes):
            if text is not None:
                waiting.append(self._wanted(row, position, text))
            elif position > self._deliveries.cursor(row.key):  # it is lost, and must not go unnoticed
                self._deliveries.dead(row.key, position, RETAINED)
            after = position
        return Taken(waiting, after)

    def _events(
        self, row: SubscriptionRow, positions: Sequence[int], max_bytes: int | None = None
    ) -> Iterator[tuple[int, str | None]]:
        """Yields positions and their events, up to the one that exceeds the bytes."""
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
        # The newest filter first: what is loaded between two reads is then in the later one, and nothing that an older
        # filter has before it is skipped.
        for filter in reversed(row.filters):
            start, end = filter.deliver_from, filter.valid_to
            if start is None or (end is not None and end - 1 <= max(after, start - 1)):
                continue
            after_ = max(after, start - 1)
            if end is None:
                found += box.store.positions_of(filter.number, after=after_, limit=limit)
            else:
                found += box.store.positions_of(filter.number, after=after_, before=end, limit=limit)
        return sorted(set(found))[:limit]  # a filter that was repaired has matched again what the one before it had

    def acknowledge(self, row: SubscriptionRow, position: int) -> None:
        """Acknowledges everything up to a position that is in the mailbox; what is matched later still comes."""
        if not self.positions(row, position - 1, 1):
            there = self.positions(row, self._deliveries.cursor(row.key), _ALL)
            position = there[-1] if there else -1
        self._deliveries.acknowledge(row.key, position)

    def reached(self, key: str) -> int:
        """Returns the position before which all events of a domain were matched; 0 if its stream has not begun."""
        reached = self._loaded(key)
        shared = self._data.shared.progress
        if shared.exists() and not (self._data.domains / key / "query").exists():
            with SharedProgress(shared, read_only=True) as progress:
                reached = max(reached, progress.resume)
        return reached

    def _loaded(self, key: str) -> int:
        """Returns the position after the last one that the domain's own stream has loaded."""
        box, path = self._boxes.get(key), self._data.domains / key / "mailboxes.sqlite"
        if box is not None:
            return box.store.resume()
        if not path.exists():
            return 0
        with Notifications(path, read_only=True) as store:  # not kept open: this is called for every domain
            return store.resume()

    def waiting_before(self, key: str, position: int) -> list[int]:
        """Returns the filters of a domain, by number, that have something waiting before a position."""
        box = self._box(key)
        if box is None:
            return []
        _, numbers = box.store.woken(-1)  # all that have anything
        return [number for number in numbers if box.store.positions_of(number, before=position, limit=1)]

    def redriven(self, row: SubscriptionRow, limit: int, max_bytes: int | None = None) -> list[Waiting]:
        """Returns the first dead letters to be delivered again; only the last may exceed `max_bytes`."""
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
        """Returns the part of an event that the subscription selects."""
        if row.select == "nodes":
            return Waiting(position, self._selection.nodes(row, position, text), "nodes")
        return Waiting(position, text)

    def dead_letters(
        self, row: SubscriptionRow, after: int, limit: int
    ) -> tuple[list[tuple[DeadNotification, str | None]], bool]:
        """Returns dead letters, with the events that the log still has; and whether there are more."""
        self.take_in_overflow(row)
        given_up = self._deliveries.dead_letters(row.key, after, limit + 1)
        missed = itertools.islice(self._missed(row, after), limit + 1)
        letters = sorted([*given_up, *missed], key=lambda letter: letter.position)[: limit + 1]
        events = self._events(row, [letter.position for letter in letters[:limit]])
        shown = [(letter, text) for letter, (_, text) in zip(letters, events, strict=False)]
        return shown, len(shown) < len(letters)

    def _missed(self, row: SubscriptionRow, after: int) -> Iterator[DeadNotification]:
        """Yields, in order, dead letters of events that were not matched because they or the filter broke matching."""
        key = domain_key_of(row)
        aside = SetAside.read(self._data.domains / key / "aside.json")
        found: list[Iterator[tuple[int, str]]] = []
        for start, end, reason in row.missed():
            positions = self._texts.positions(key, max(start, after + 1), end)
            found.append(zip(positions, itertools.repeat(f"the filter could not be matched: {reason}"), strict=False))
        events = sorted(aside.events.items())
        valid = ((at, why) for at, why in events if at > after and any(one.valid_at(at) for one in row.filters))
        found.append((at, f"the event could not be matched: {why}") for at, why in valid)
        seen = -1
        for position, reason in heapq.merge(*found):
            if position > seen:
                yield DeadNotification(row.key, position, reason, 0, row.updated)
                seen = position

    def take_in_overflow(self, row: SubscriptionRow) -> None:
        """Makes dead letters of what overflowed a mailbox, once; a separate cursor keeps how far that has come."""
        box = self._box(domain_key_of(row))
        if box is None or row.replaying:
            return  # a history is loaded late, before what may have overflowed already
        for filter in row.filters:
            start, end = filter.deliver_from, filter.valid_to
            while True:
                seen = self._deliveries.cursor(-filter.number)
                over = [one.position for one in box.store.overflowed(filter.number, after=seen, limit=_DEAD_AT_ONCE)]
                if not over:
                    break
                dead = [at for at in over if start is not None and start <= at and (end is None or at < end)]
                self._deliveries.dead_many(row.key, dict.fromkeys(dead, OVERFLOWED), cursors={-filter.number: over[-1]})

    def _box(self, key: str) -> _Box | None:
        box = self._boxes.get(key)
        if box is None:
            with self._opening:
                path = self._data.domains / key / "mailboxes.sqlite"
                if key not in self._boxes and path.exists():  # the driver makes it
                    store = Notifications(path)
                    self._boxes[key] = _Box(store, 0)  # everything in it is new
                box = self._boxes.get(key)
        return box

    def woken(self, key: str) -> Sequence[int]:
        """Returns the filters of a domain, by number, that have got something since the last call."""
        box = self._box(key)
        if box is None:
            return ()
        box.loads, numbers = box.store.woken(box.loads)
        return numbers


def domain_key_of(row: SubscriptionRow) -> str:
    return f"{row.tenant}.{row.domain}"
