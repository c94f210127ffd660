"""Merge parts of a matcher into one segment, in the background.

The newest subscriptions are a `Fresh`, and those before lie in segments of ever greater size. As in a
log-structured merge tree, one is merged with the next larger when it has grown near to it, so that a
subscription is indexed anew a few times, however many come after. Normal forms are merged as columns;
only those of the largest segments, which are not kept, are made anew from the texts.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.filter.normal.filter_table import Codes, FilterTable, Intervals
from tidings.filter.normal.residuals import ResidualBuilder
from tidings.matching.batch_columns import Columns
from tidings.matching.change.delta import Fresh
from tidings.matching.change.removed import NEVER
from tidings.matching.change.segment import Living, Segment, compile_table, joined, segment_of, taken
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.types import Path

Part: TypeAlias = "Living | Fresh"
Slots: TypeAlias = npt.NDArray[np.int64]

KEEP = 1 << 18  # subscriptions in a segment, up to which its normal forms are kept
_RATIO = 2  # a part stays by itself if the one before it is this many times as large
_DEAD = 0.4  # of a part: then it is indexed anew


def first_to_merge(parts: Sequence[Part]) -> int | None:
    """Where the parts begin that are to be merged, up to the last; None: all is well."""
    if not parts:
        return None
    first, size = len(parts) - 1, max(1, parts[-1].alive)
    while first and parts[first - 1].alive < _RATIO * size:
        first -= 1
        size += parts[first].alive
    due = [number for number, part in enumerate(parts) if isinstance(part, Fresh) or part.dead > _DEAD * len(part)]
    first = min([first, *due])
    return first if due or first < len(parts) - 1 else None


def merged(parts: Sequence[Part], domain: Domain, sample: Columns | None) -> tuple[Segment, list[Slots]]:
    """One segment of what is alive in some parts, and of each part the slots that went into it, in order."""
    living = [part.living() for part in parts]
    tables = [taken(joined(list(part.tables)), slots) for part, slots in zip(parts, living, strict=True) if len(part)]
    table = joined(tables or list(parts[0].tables))
    filters = joined_filters([_filters(part, slots, domain) for part, slots in zip(parts, living, strict=True)], domain)
    segment = segment_of(table, filters, sample, keep=len(table) <= KEEP)
    assert segment.lookup is not None  # made here, and not by the first change
    return segment, living


def _filters(part: Part, slots: Slots, domain: Domain) -> FilterTable:
    if isinstance(part, Fresh):
        return part.filters(slots)
    if part.segment.filters is None:
        return compile_table(taken(part.segment.table, slots), domain)
    return taken_filters(part.segment.filters, slots)


def died_since(before: Part, now: Part, slots: Slots) -> Slots:
    """Which of the slots that were alive in a part have died since, by their places in `slots`."""
    if not len(now.died):
        return np.empty(0, np.int64)
    died = now.died[slots]
    return np.flatnonzero((died > before.deaths) & (died != NEVER))


# ---------------------------------------------------------------------- normal forms


def taken_filters(table: FilterTable, rows: Slots) -> FilterTable:
    """The normal forms of some filters of a table, ascending."""
    if len(rows) == table.count:
        return table
    number = np.full(table.count, -1, np.int32)
    number[rows] = np.arange(len(rows), dtype=np.int32)
    kept = number[table.box_filter] >= 0
    box = np.cumsum(kept, dtype=np.int32) - 1
    intervals = {}
    for path, one in table.intervals.items():
        inside, nulls = kept[one.boxes], one.null_boxes[kept[one.null_boxes]]
        if inside.any() or len(nulls):
            lows, highs = one.lows[inside], one.highs[inside]
            intervals[path] = Intervals(one.type, box[one.boxes[inside]], lows, highs, box[nulls], one.keys)
    return FilterTable(
        table.domain, len(rows), number[table.box_filter[kept]], intervals, table.residual_of[kept], table.residuals
    )


def joined_filters(tables: Sequence[FilterTable], domain: Domain) -> FilterTable:
    """The normal forms of tables one after the other."""
    if len(tables) == 1:
        return tables[0]
    builder = ResidualBuilder()
    residual_of: list[npt.NDArray[np.int32]] = []
    for table in tables:
        used = np.unique(table.residual_of[table.residual_of >= 0])
        numbers = np.full(len(table.residuals) + 1, -1, np.int32)  # the last for none
        numbers[used] = builder.add_all(table.residuals, used)
        residual_of.append(numbers[table.residual_of])
    residuals, renumbered = builder.build()
    filters = np.cumsum([0, *(table.count for table in tables)])
    boxes = np.cumsum([0, *(table.boxes for table in tables)])
    paths = sorted({path for table in tables for path in table.intervals})
    return FilterTable(
        domain=domain,
        count=int(filters[-1]),
        box_filter=_end_to_end([table.box_filter for table in tables], filters),
        intervals={path: _joined_intervals(path, tables, boxes) for path in paths},
        residual_of=np.append(renumbered, np.int32(-1))[np.concatenate(residual_of)],
        residuals=residuals,
    )


def _joined_intervals(path: Path, tables: Sequence[FilterTable], boxes: Slots) -> Intervals:
    numbers = [number for number, table in enumerate(tables) if path in table.intervals]
    parts = [tables[number].intervals[path] for number in numbers]
    bases = boxes[numbers]
    keys, recoded = None, [(one.lows, one.highs) for one in parts]
    if parts[0].keys is not None:
        keys, recoded = _joined_keys(parts)
    return Intervals(
        parts[0].type,
        _end_to_end([one.boxes for one in parts], bases),
        np.concatenate([lows for lows, _ in recoded]),
        np.concatenate([highs for _, highs in recoded]),
        _end_to_end([one.null_boxes for one in parts], bases),
        keys,
    )


def _end_to_end(numbers: Sequence[npt.NDArray[np.int32]], bases: Any) -> npt.NDArray[np.int32]:
    moved = [one + np.int32(base) for one, base in zip(numbers, bases, strict=False)]
    return np.concatenate([np.empty(0, np.int32), *moved])


def _joined_keys(parts: Sequence[Intervals]) -> tuple[ArrowArray, list[tuple[Codes, Codes]]]:
    """The constants that all parts together ask for, ascending, and the parts' codes among them."""
    used = [_used(one) for one in parts]
    chosen = [one.keys.filter(pa.array(mask)) for one, mask in zip(parts, used, strict=True) if one.keys is not None]
    encoded = pa.concat_arrays(chosen).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranks = rank[encoded.indices.to_numpy(zero_copy_only=False)] if len(order) else np.empty(0, np.int64)
    recoded = []
    for one, mask, own in zip(parts, used, np.split(ranks, np.cumsum([mask.sum() for mask in used])[:-1]), strict=True):
        place = np.full(len(mask) + 1, len(order), np.int64)  # the last: past every constant
        place[:-1][mask] = own
        # Constant i is 2i, and what lies between it and the next is 2i + 1: a range from there begins after
        # constant i, wherever that is now, and one up to there ends before constant i + 1. Before all lies -1.
        lows = np.where(one.lows < 0, -1, 2 * place[one.lows >> 1] + (one.lows & 1))
        highs = np.where(one.highs & 1, 2 * place[(one.highs + 1) >> 1] - 1, 2 * place[one.highs >> 1])
        recoded.append((lows, highs))
    return encoded.dictionary.take(pa.array(order)), recoded


def _used(intervals: Intervals) -> npt.NDArray[np.bool_]:
    """Which of an attribute's constants its intervals end at."""
    assert intervals.keys is not None
    used: npt.NDArray[np.bool_] = np.zeros(len(intervals.keys) + 1, bool)
    used[intervals.lows[intervals.lows >= 0] >> 1] = True
    used[(intervals.highs + 1) >> 1] = True
    return used[:-1]


# ---------------------------------------------------------------------- in the background


class Background:
    """Does work on a thread of its own while there is some; no thread is left when there is none.

    `work` is a method that does one piece and tells whether there was one. It is held weakly: when its
    object goes, so does the thread, after the piece it is at. What the work raises is printed as any
    thread's error is, and raised again by `wait`.
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
        """See to it that there is a thread that will look for work from now on."""
        with self._lock:
            self._again = True
            if self._thread is None and not self.stopping:
                self._thread = threading.Thread(target=self._run, name="tidings-merge", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Until all work is done."""
        while (thread := self._thread) is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(f"subscriptions could not be merged: {error}; matching goes on without") from error

    def stop(self) -> None:
        """After the piece that is being done, if any, no more."""
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


_all: weakref.WeakSet[Background] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that the interpreter leaves behind in the middle of a kernel may take the process with it."""
    for background in list(_all):
        background.stop()
