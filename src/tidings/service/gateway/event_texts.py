"""The texts of events by position, for those who are notified of them: many ask for the same few pages.

A read holds the page that it is at, and reads on as its caller asks for more. The cache only saves reading a page
again that somebody else has just read: what is in it, and what falls out of it, changes no result.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidings.store.log.log_errors import LogRangeError
from tidings.store.log.log_reader import LogReader
from tidings.store.log.page import Page

_CACHED_CHARACTERS = 16 << 20  # what is delivered is mostly new, and all who wait for it ask at once
_TOGETHER = 256  # positions that one read of the log may span, rather than one read each


class _Texts(NamedTuple):
    """The texts of one page."""

    first: int
    end: int
    domain: str
    texts: list[str]

    def has(self, position: int) -> bool:
        return self.first <= position < self.end


class EventTexts:
    """Reads texts off the log, and keeps the pages that were read last. Threads may share one."""

    def __init__(self, log: LogReader, *, cached_characters: int = _CACHED_CHARACTERS) -> None:
        self._log = log
        self._max = cached_characters
        self._pages: OrderedDict[int, _Texts] = OrderedDict()  # by first position, the last used last
        self._firsts: list[int] = []  # of those pages, in order
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._lock = threading.Lock()  # of the cache alone: nobody waits for another's read of the log

    def of(self, positions: Sequence[int], domain: str) -> Iterator[str | None]:
        """The texts at positions, which go up, read page by page as the caller goes on.

        None where the log has no such event of the domain: retention has removed it, or a repair has given it up.
        """
        page: _Texts | None = None
        for position, read in self._reads(positions, domain):
            if page is None or not page.has(position):
                page = self._cached(position)
            if page is None:
                page = self._advanced(read, position)
            if page is None or not page.has(position):  # the read has passed it, or met one that is gone
                page = self._advanced(self._log.pages(position, position + 1, domain=domain), position)
            yield None if page is None or page.domain != domain else page.texts[position - page.first]

    def positions(self, domain: str, start: int, end: int | None = None) -> Iterator[int]:
        """The positions of a domain's events from `start` on, up to `end` or to the end of the log."""
        last = self._log.end
        for first, count in self._log.parts(
            max(start, self._log.start), last if end is None else min(end, last), domain
        ):
            yield from range(first, first + count)

    def _reads(self, positions: Sequence[int], domain: str) -> Iterator[tuple[int, Iterator[Page]]]:
        """Each position with the read of the log that spans it, which begins when it is first needed."""
        read: Iterator[Page] = iter(())
        end = -1
        for at, position in enumerate(positions):
            if position >= end:
                last = bisect.bisect_left(positions, position + _TOGETHER, lo=at) - 1
                end = positions[last] + 1
                read = self._log.pages(position, end, domain=domain)
            yield position, read

    def _advanced(self, read: Iterator[Page], position: int) -> _Texts | None:
        """The page of a position, where a read that has not passed it comes to it."""
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
