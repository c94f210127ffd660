"""The texts of events by position, for whoever is told of them: many ask for the same few pages."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Sequence

from tidings.store.errors import LogRangeError
from tidings.store.page import Page
from tidings.store.reader import LogReader

_CACHED_CHARACTERS = 16 << 20  # what is delivered is mostly new, and all who wait for it ask at once
_TOGETHER = 256  # positions that one read of the log may span, rather than one read each


class EventTexts:
    """Reads texts off the log, and keeps the pages that were asked for last. Any thread may ask."""

    def __init__(self, log: LogReader, *, cached_characters: int = _CACHED_CHARACTERS) -> None:
        self._log = log
        self._max = cached_characters
        self._pages: OrderedDict[int, tuple[int, str, list[str]]] = OrderedDict()  # first → end, domain, texts
        self._firsts: list[int] = []  # of those pages, in order
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._lock = threading.Lock()

    def of(self, positions: Sequence[int], domain: str) -> list[str | None]:
        """The texts at positions, which go up; None where retention has removed one, or it is of another domain."""
        with self._lock:
            found: list[str | None] = []
            for at, position in enumerate(positions):
                text = self._cached(position, domain)
                if text is _MISSING:
                    self._read(positions, at)
                    text = self._cached(position, domain)
                found.append(None if text is _MISSING else text)
            return found

    def _cached(self, position: int, domain: str) -> str | None:
        at = bisect.bisect_right(self._firsts, position) - 1
        if at < 0:
            return _MISSING
        first = self._firsts[at]
        end, of, texts = self._pages[first]
        if position >= end:
            return _MISSING
        self._pages.move_to_end(first)
        return texts[position - first] if of == domain else None

    def _read(self, positions: Sequence[int], at: int) -> None:
        """Read the page of a position, and those of the next ones where they are near."""
        start = positions[at]
        last = start
        for position in positions[at + 1 :]:
            if position - start >= _TOGETHER:
                break
            last = position
        try:
            for page in self._log.pages(start, last + 1):
                self._keep(page)
        except LogRangeError:
            if last > start:  # one of them is gone: which, is seen one by one
                self._read(positions[: at + 1], at)

    def _keep(self, page: Page) -> None:
        if page.first in self._pages:
            return
        self._pages[page.first] = (page.end, page.domain, page.texts())
        bisect.insort(self._firsts, page.first)
        self._size += page.length
        self._sizes[page.first] = page.length
        while self._size > self._max and len(self._pages) > 1:
            gone, _ = self._pages.popitem(last=False)
            self._size -= self._sizes.pop(gone)
            del self._firsts[bisect.bisect_left(self._firsts, gone)]


_MISSING: str = "\0 there is no such page"
