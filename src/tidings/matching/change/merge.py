"""Merges parts of an index version into one segment, in the background.

The newest subscriptions are a `Delta`, and those before lie in segments of ever greater size. As in a log-structured
merge tree, one is merged with the next larger when it has grown near to it, so that a subscription is indexed a few
times, however many come after. Normal forms are merged as columns; only those of the largest segments, which are not
kept, are compiled from the texts again: kept, they would nearly double the bytes of a subscription (alerts at 1 M: 68
beside 80), and such a merge comes once in some 250,000 additions.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidings.filter.normal.filter_table import FilterTable, joined_filters, taken_filters
from tidings.matching.batch_columns import Columns
from tidings.matching.change.delta import Delta
from tidings.matching.change.removed import Slots
from tidings.matching.change.segment import IndexSegment, LiveSegment, compile_table, segment_of
from tidings.model.domain import Domain
from tidings.model.subscription import joined_tables

Part: TypeAlias = "LiveSegment | Delta"

KEEP = 1 << 18  # subscriptions in a segment, up to which its normal forms are kept
_RATIO = 2  # a part stays by itself if the one before it is this many times as large
_REMOVED = 0.4  # of a part, beyond which it is indexed again


def first_to_merge(parts: Sequence[Part]) -> int | None:
    """Where the parts begin that are to be merged, up to the last; None if nothing is due."""
    if not parts:
        return None
    first, size = len(parts) - 1, max(1, parts[-1].alive)
    while first and parts[first - 1].alive < _RATIO * size:
        first -= 1
        size += parts[first].alive
    due = [
        number
        for number, part in enumerate(parts)
        if isinstance(part, Delta) or part.removed.count > _REMOVED * len(part)
    ]
    first = min([first, *due])
    return first if due or first < len(parts) - 1 else None


def merged(parts: Sequence[Part], domain: Domain, sample: Columns | None) -> tuple[IndexSegment, list[Slots]]:
    """One segment of what is left in some parts, and of each part the slots that went into it, in order."""
    living = [part.living() for part in parts]
    tables = [joined_tables(part.tables).take(slots) for part, slots in zip(parts, living, strict=True) if len(part)]
    table = joined_tables(tables or parts[0].tables)
    filters = joined_filters([_filters(part, slots, domain) for part, slots in zip(parts, living, strict=True)], domain)
    segment = segment_of(table, filters, sample, keep=len(table) <= KEEP)
    assert segment.lookup is not None  # made here, and not by the first change
    return segment, living


def _filters(part: Part, slots: Slots, domain: Domain) -> FilterTable:
    if isinstance(part, Delta):
        return part.filters(slots)
    if part.segment.filters is None:
        return compile_table(part.segment.table.take(slots), domain)
    return taken_filters(part.segment.filters, slots)


# ---------------------------------------------------------------------- in the background


class BackgroundMerge:
    """Does work on a thread of its own; the thread ends when no work is left.

    `work` is a method that does one piece and returns whether there was one. It is held weakly: when its object goes,
    the thread ends after the piece that it is doing. What the work raises is printed as any thread's error is, and
    raised again by `wait`.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = weakref.WeakMethod(work)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self._error: BaseException | None = None
        self.stopping = False
        _all.add(self)

    def start(self) -> None:
        """Start a thread that looks for work, unless one is running."""
        with self._lock:
            self._again = True
            if self._thread is None and not self.stopping:
                self._thread = threading.Thread(target=self._run, name="tidings-merge", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until all work is done; raises RuntimeError if it failed."""
        while (thread := self._thread) is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(f"subscriptions could not be merged: {error}; matching goes on without") from error

    def stop(self) -> None:
        """Stop after the piece that is being done, if any."""
        self.stopping = True
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            while self._more():
                pass
        except BaseException as error:
            self._error = error
            with self._lock:
                self._thread = None
            raise

    def _more(self) -> bool:
        self._again = False
        work = self._work()
        if work is not None and not self.stopping and work():
            return True
        with self._lock:
            if self._again and work is not None and not self.stopping:
                return True
            self._thread = None
            return False


_all: weakref.WeakSet[BackgroundMerge] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that the interpreter leaves behind in the middle of a kernel may take the process with it."""
    for background in list(_all):
        background.stop()
