"""An index version: everything that a match reads, immutable. A change makes another version and swaps it in.

    base       segments, the largest first, and a delta that is being merged
    delta      the newest subscriptions
    removed    in each part, which of its subscriptions were removed
    pending    before the first events: the subscriptions, with their normal forms if the domain is known

Functions here make the next version from one; their caller makes one change at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import FilterError, SubscriptionError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels.hashing import string_buffers
from tidings.matching.batch_columns import Columns
from tidings.matching.change.delta import Delta
from tidings.matching.change.delta_reader import DeltaReader, Reads
from tidings.matching.change.merge import Part, merged
from tidings.matching.change.removed import Slots
from tidings.matching.change.segment import IndexSegment, LiveSegment, compile_table, segment_of, unreadable
from tidings.matching.engines.guests import host_of
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable, joined_tables

LARGE = 4096  # subscriptions added at once, from which they are indexed at once
HOST = 4096  # entries in a segment's cells, from which they take guests
_SUGGESTED = 10_000  # ids of a part among which one like an unknown one is looked for


@dataclass(frozen=True)
class MatcherVersion:
    """Before a domain is known there are no parts, only the table that is pending."""

    domain: Domain | None
    base: tuple[Part, ...] = ()
    delta: Delta | None = None
    pending: SubscriptionTable | None = None  # not indexed yet, with its normal forms if the domain is known
    filters: FilterTable | None = None

    def __len__(self) -> int:
        return sum(part.alive for part in self.parts) + (0 if self.pending is None else len(self.pending))

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.base if self.delta is None else (*self.base, self.delta)

    def tables(self) -> list[SubscriptionTable]:
        """The subscriptions that are not removed, part by part."""
        tables = [joined_tables(part.tables).take(part.living()) for part in self.parts if len(part)]
        return tables if self.pending is None else [*tables, self.pending]

    def filter_text(self, subscription_id: str | int) -> str:
        """The filter of a subscription."""
        if isinstance(subscription_id, str | int) and not isinstance(subscription_id, bool):
            ids: ArrowArray = pa.array([subscription_id])
            for part in self.parts:
                slot = int(part.find(ids)[0])
                if slot >= 0:
                    return part.text(slot)
            if self.pending is not None and self.pending.ids.type == ids.type:
                row = pc.index(self.pending.ids, ids[0]).as_py()
                if row >= 0:
                    return str(self.pending.filters[row].as_py())
        raise self.unknown(subscription_id)

    def unknown(self, subscription_id: object) -> SubscriptionError:
        """The error for an unknown subscription, with an id that is nearly the same."""
        known: list[Any] = []
        for part in self.parts:
            if part.alive:
                known += joined_tables(part.tables).take(part.living()[:_SUGGESTED]).ids.to_pylist()
        if self.pending is not None:
            known += self.pending.ids[:_SUGGESTED].to_pylist()
        hint = did_you_mean(str(subscription_id), map(str, known))
        return SubscriptionError(f"no subscription '{subscription_id}'; {hint}")


def pending_version(table: SubscriptionTable, domain: Domain | None) -> MatcherVersion:
    return MatcherVersion(domain, pending=table, filters=None if domain is None else compile_table(table, domain))


def from_first_events(table: SubscriptionTable, domain: Domain) -> MatcherVersion:
    """The version of subscriptions whose domain the first events gave."""
    try:
        return pending_version(table, domain)
    except FilterError as error:
        hint = f"{error.hint}; the first events gave the domain: give Matcher a domain that has all attributes"
        raise FilterError(error.reason, column=error.column, hint=hint) from None


def indexed_version(version: MatcherVersion, sample: Columns | None) -> MatcherVersion:
    """With what was pending in a segment; none of its normal forms are kept."""
    assert version.pending is not None
    assert version.filters is not None
    return MatcherVersion(
        version.domain, (*version.base, LiveSegment(segment_of(version.pending, version.filters, sample, keep=False)))
    )


# ---------------------------------------------------------------------- changes


def changed_table(before: SubscriptionTable, added: SubscriptionTable, *, replacing: bool) -> SubscriptionTable:
    """A table with another's subscriptions in it, before anything is indexed."""
    if not len(before):
        return added
    _refuse_other_type(before.ids.type, added)
    again = pc.is_in(before.ids, value_set=added.ids).to_numpy(zero_copy_only=False)
    if again.any() and not replacing:
        raise _there_already(before.ids[int(np.flatnonzero(again)[0])].as_py())
    return joined_tables([before.take(np.flatnonzero(~again)), added])


def table_without(version: MatcherVersion, ids: Sequence[str | int]) -> MatcherVersion:
    """A version that is not indexed, less some subscriptions."""
    assert version.pending is not None
    gone = set(ids)
    known: list[Any] = version.pending.ids.to_pylist()
    for id_ in ids:
        if id_ not in set(known):
            raise version.unknown(id_)
    rows = np.array([row for row, id_ in enumerate(known) if id_ not in gone], np.int64)
    return replace(version, pending=version.pending.take(rows))


def version_without(version: MatcherVersion, ids: Sequence[str | int]) -> MatcherVersion:
    """Less some subscriptions, all of which have to be there."""
    if not ids:
        return version
    texts = isinstance(ids[0], str)
    alike = set(map(type, ids)) == {str if texts else int}
    if not alike and any(isinstance(id_, bool) or not isinstance(id_, str if texts else int) for id_ in ids):
        raise version.unknown(next(id_ for id_ in ids if isinstance(id_, bool) or isinstance(id_, str) is not texts))
    column = pa.array(ids, pa.string() if texts else pa.int64())
    found = [part.find(column) for part in version.parts]
    missing = np.logical_and.reduce([slots < 0 for slots in found])
    if missing.any():
        raise version.unknown(ids[int(np.flatnonzero(missing)[0])])
    return _dropped(version, found)


def version_with(
    version: MatcherVersion, table: SubscriptionTable, reader: DeltaReader, sample: Columns | None, *, replacing: bool
) -> MatcherVersion:
    """With more subscriptions, in place of those with the same ids."""
    assert version.domain is not None
    found = [part.find(table.ids) for part in version.parts]
    there = np.logical_or.reduce([np.zeros(len(table), bool), *(slots >= 0 for slots in found)])
    if there.any() and not replacing:
        raise _there_already(table.ids[int(np.flatnonzero(there)[0])].as_py())
    for part in version.parts:
        if part.alive:
            _refuse_other_type(part.tables[0].ids.type, table)
    if len(table) >= LARGE or _has_paths(table):
        segment = segment_of(table, compile_table(table, version.domain), sample, keep=True)
        return MatcherVersion(version.domain, (*_dropped(version, found).parts, LiveSegment(segment)))
    reads = _read(table, reader)
    version = _dropped(version, found) if there.any() else version  # from here on nothing is refused
    delta = version.delta or _hosted(Delta(reader.domain, sample), version.base)
    return replace(version, delta=delta.with_added(table, reads))


def _hosted(delta: Delta, base: Sequence[Part]) -> Delta:
    """As guests of the largest segment, unless there are guests that are still to be merged."""
    host, first = None, base[0] if base else None
    if isinstance(first, LiveSegment) and not any(isinstance(part, Delta) for part in base):
        cells = first.segment.index.cells
        if cells is not None and len(cells.outputs) >= HOST:
            host = host_of(cells, first.segment.index.coders, delta.sample)
    return delta if host is None and delta.guests is None else delta.with_host(host)


def _has_paths(table: SubscriptionTable) -> bool:
    """Whether some filters are paths over XML, which are only indexed together."""
    offsets, data = string_buffers(table.filters)
    return b"xpath_boolean" in data[offsets[0] : offsets[-1]].tobytes().lower()  # Arrow's search compiles a pattern


def _read(table: SubscriptionTable, reader: DeltaReader) -> Reads:
    reads, wrong = reader.read_all(table.filters)
    if wrong:
        row, error = wrong[0]
        raise unreadable(table, row, error, len(wrong)) from error
    return reads


def _dropped(version: MatcherVersion, found: Sequence[Slots]) -> MatcherVersion:
    """Less the slots found in each part."""
    wanted = [slots[slots >= 0] for slots in found]
    base = [part.without(slots) if len(slots) else part for part, slots in zip(version.base, wanted, strict=False)]
    delta = version.delta
    if delta is not None and len(wanted[-1]):
        delta = delta.without(wanted[-1])
    return replace(version, base=tuple(base), delta=delta)


def _there_already(id_: object) -> SubscriptionError:
    return SubscriptionError(f"subscription {id_!r} exists already; use upsert to replace it")


def _refuse_other_type(type_: pa.DataType, table: SubscriptionTable) -> None:
    if len(table) and table.ids.type != type_:
        raise SubscriptionError(
            f"the id {table.ids[0].as_py()!r} is not of the type of the others; all are texts or all integers"
        )


# ---------------------------------------------------------------------- merging


def frozen(version: MatcherVersion) -> MatcherVersion:
    """With the delta among the parts that are to be merged."""
    return version if version.delta is None else replace(version, base=version.parts, delta=None)


def with_merged(
    version: MatcherVersion, before: MatcherVersion, first: int, segment: IndexSegment, went: Sequence[Slots]
) -> MatcherVersion:
    """With a segment in place of the parts of an earlier version from `first` on, less what was removed since."""
    last = len(before.base)
    gone, start = [], 0
    for old, now, slots in zip(before.base[first:], version.base[first:last], went, strict=True):
        gone.append(start + now.removed.removed_since(old.removed, slots))
        start += len(slots)
    slots = np.concatenate(gone)
    living = LiveSegment(segment).without(slots) if len(slots) else LiveSegment(segment)
    base = (*version.base[:first], living, *version.base[last:])
    delta = version.delta
    if delta is not None and (first == 0 or delta.guests is None):  # it came while its host was being merged
        delta = _hosted(delta, base)
    return replace(version, base=base, delta=delta)


def at_rest(version: MatcherVersion, sample: Columns | None) -> MatcherVersion:
    """The same subscriptions in segments alone, which share nothing with those that are changed later."""
    if version.domain is None:
        return version
    parts = [
        part.at_rest() if isinstance(part, LiveSegment) else LiveSegment(merged([part], version.domain, sample)[0])
        for part in version.parts
    ]
    return replace(version, base=tuple(parts), delta=None)


def valid_at(part: Part, at: npt.NDArray[np.int64], slots: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which of some slots of a part are valid at the positions beside them."""
    valid = np.ones(len(slots), bool)
    starts = np.cumsum([0, *(len(table) for table in part.tables)])
    number = np.searchsorted(starts, slots, side="right") - 1
    for i in np.unique(number):
        rows = np.flatnonzero(number == i)
        table, inside = part.tables[i], pa.array(slots[rows] - starts[i])
        for column, outside in ((table.valid_from, np.less), (table.valid_to, np.greater_equal)):
            if column is not None:
                valid[rows] &= ~_beyond(column.take(inside), at[rows], outside)
    return valid


def _beyond(bounds: ArrowArray, at: npt.NDArray[np.int64], outside: Any) -> npt.NDArray[np.bool_]:
    bounded = bounds.is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(bounded & outside(at, bounds.fill_null(0).to_numpy(zero_copy_only=False)))
