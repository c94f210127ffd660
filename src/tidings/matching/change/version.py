"""Everything that a match reads, immutable: a change makes another, and swaps it in.

Subscriptions lie in *parts*: segments, the largest first, and a `Fresh` for the newest. Functions here
make the next state of a matcher from one; who calls them sees to it that there is one at a time.
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
from tidings.matching.change.delta import Fresh
from tidings.matching.change.delta_reader import DeltaReader, Reads
from tidings.matching.change.merge import Part, Slots, died_since, merged
from tidings.matching.change.segment import Living, Segment, compile_table, joined, segment_of, taken, unreadable
from tidings.matching.engines.guests import host_of
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable

LARGE = 4096  # subscriptions added at once, from which they are indexed at once
HOST = 4096  # entries in a segment's cells, from which they take guests
_SUGGESTED = 10_000  # ids of a part among which one like an unknown one is looked for


@dataclass(frozen=True)
class State:
    """Before a domain is known there are no parts, only the table."""

    domain: Domain | None
    indexed: tuple[Part, ...] = ()  # segments, and one that was fresh and is being merged
    fresh: Fresh | None = None
    pending: SubscriptionTable | None = None  # not indexed yet, with its normal forms where the domain is known
    filters: FilterTable | None = None

    def __len__(self) -> int:
        return sum(part.alive for part in self.parts) + (0 if self.pending is None else len(self.pending))

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.indexed if self.fresh is None else (*self.indexed, self.fresh)

    def tables(self) -> list[SubscriptionTable]:
        """What is alive, part by part."""
        tables = [taken(joined(list(part.tables)), part.living()) for part in self.parts if len(part)]
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
        """That there is no such subscription, and one that has nearly its id."""
        known: list[Any] = []
        for part in self.parts:
            if part.alive:
                known += taken(joined(list(part.tables)), part.living()[:_SUGGESTED]).ids.to_pylist()
        if self.pending is not None:
            known += self.pending.ids[:_SUGGESTED].to_pylist()
        hint = did_you_mean(str(subscription_id), map(str, known))
        return SubscriptionError(f"no subscription '{subscription_id}'; {hint}")


def pending_state(table: SubscriptionTable, domain: Domain | None) -> State:
    return State(domain, pending=table, filters=None if domain is None else compile_table(table, domain))


def from_first_events(table: SubscriptionTable, domain: Domain) -> State:
    """The state of subscriptions whose domain the first events gave."""
    try:
        return pending_state(table, domain)
    except FilterError as error:
        hint = f"{error.hint}; the first events gave the domain: give Matcher a domain that has all attributes"
        raise FilterError(error.reason, column=error.column, hint=hint) from None


def indexed_state(state: State, sample: Columns | None) -> State:
    """With what was pending in a segment; none of its normal forms are kept."""
    assert state.pending is not None
    assert state.filters is not None
    return State(state.domain, (*state.indexed, Living(segment_of(state.pending, state.filters, sample, keep=False))))


# ---------------------------------------------------------------------- changes


def changed_table(before: SubscriptionTable, added: SubscriptionTable, *, replacing: bool) -> SubscriptionTable:
    """A table with another's subscriptions in it, before anything is indexed."""
    if not len(before):
        return added
    _refuse_other_type(before.ids.type, added)
    again = pc.is_in(before.ids, value_set=added.ids).to_numpy(zero_copy_only=False)
    if again.any() and not replacing:
        raise _there_already(before.ids[int(np.flatnonzero(again)[0])].as_py())
    return joined([taken(before, np.flatnonzero(~again)), added])


def table_without(state: State, ids: Sequence[str | int]) -> State:
    """A state that is not indexed, less some subscriptions."""
    assert state.pending is not None
    gone = set(ids)
    known: list[Any] = state.pending.ids.to_pylist()
    for id_ in ids:
        if id_ not in set(known):
            raise state.unknown(id_)
    rows = np.array([row for row, id_ in enumerate(known) if id_ not in gone], np.int64)
    return replace(state, pending=taken(state.pending, rows))


def state_without(state: State, ids: Sequence[str | int]) -> State:
    """Less some subscriptions, all of which have to be there."""
    if not ids:
        return state
    texts = isinstance(ids[0], str)
    alike = set(map(type, ids)) == {str if texts else int}
    if not alike and any(isinstance(id_, bool) or not isinstance(id_, str if texts else int) for id_ in ids):
        raise state.unknown(next(id_ for id_ in ids if isinstance(id_, bool) or isinstance(id_, str) is not texts))
    column = pa.array(ids, pa.string() if texts else pa.int64())
    found = [part.find(column) for part in state.parts]
    missing = np.logical_and.reduce([slots < 0 for slots in found])
    if missing.any():
        raise state.unknown(ids[int(np.flatnonzero(missing)[0])])
    return _dropped(state, found)


def state_with(
    state: State, table: SubscriptionTable, reader: DeltaReader, sample: Columns | None, *, replacing: bool
) -> State:
    """With more subscriptions, in place of those with the same ids."""
    assert state.domain is not None
    found = [part.find(table.ids) for part in state.parts]
    there = np.logical_or.reduce([np.zeros(len(table), bool), *(slots >= 0 for slots in found)])
    if there.any() and not replacing:
        raise _there_already(table.ids[int(np.flatnonzero(there)[0])].as_py())
    for part in state.parts:
        if part.alive:
            _refuse_other_type(part.tables[0].ids.type, table)
    if len(table) >= LARGE or _has_paths(table):
        segment = segment_of(table, compile_table(table, state.domain), sample, keep=True)
        return State(state.domain, (*_dropped(state, found).parts, Living(segment)))
    reads = _read(table, reader)
    state = _dropped(state, found) if there.any() else state  # from here on nothing is refused
    fresh = state.fresh or _hosted(Fresh(reader.domain, sample), state.indexed)
    return replace(state, fresh=fresh.with_added(table, reads))


def _hosted(fresh: Fresh, indexed: Sequence[Part]) -> Fresh:
    """As guests of the largest segment, unless there are guests that are still to be merged."""
    host, first = None, indexed[0] if indexed else None
    if isinstance(first, Living) and not any(isinstance(part, Fresh) for part in indexed):
        cells = first.segment.index.cells
        if cells is not None and len(cells.outputs) >= HOST:
            host = host_of(cells, first.segment.index.coders, fresh.sample)
    return fresh if host is None and fresh.guests is None else fresh.with_host(host)


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


def _dropped(state: State, found: Sequence[Slots]) -> State:
    """Less the slots found in each part."""
    wanted = [slots[slots >= 0] for slots in found]
    indexed = [part.without(slots) if len(slots) else part for part, slots in zip(state.indexed, wanted, strict=False)]
    fresh = state.fresh
    if fresh is not None and len(wanted[-1]):
        fresh = fresh.without(wanted[-1])
    return replace(state, indexed=tuple(indexed), fresh=fresh)


def _there_already(id_: object) -> SubscriptionError:
    return SubscriptionError(f"subscription {id_!r} is there already; upsert takes its place")


def _refuse_other_type(type_: pa.DataType, table: SubscriptionTable) -> None:
    if len(table) and table.ids.type != type_:
        raise SubscriptionError(
            f"the id {table.ids[0].as_py()!r} is not of the type of the others; all are texts or all integers"
        )


# ---------------------------------------------------------------------- merging


def frozen(state: State) -> State:
    """With what is fresh among the parts that are to be merged."""
    return state if state.fresh is None else replace(state, indexed=state.parts, fresh=None)


def with_merged(state: State, before: State, first: int, segment: Segment, went: Sequence[Slots]) -> State:
    """With a segment in place of the parts of an earlier state from `first` on, less what has died since."""
    last = len(before.indexed)
    gone, base = [], 0
    for old, now, slots in zip(before.indexed[first:], state.indexed[first:last], went, strict=True):
        gone.append(base + died_since(old, now, slots))
        base += len(slots)
    slots = np.concatenate(gone)
    living = Living(segment).without(slots) if len(slots) else Living(segment)
    indexed = (*state.indexed[:first], living, *state.indexed[last:])
    fresh = state.fresh
    if fresh is not None and (first == 0 or fresh.guests is None):  # it came while its host was being merged
        fresh = _hosted(fresh, indexed)
    return replace(state, indexed=indexed, fresh=fresh)


def at_rest(state: State, sample: Columns | None) -> State:
    """The same subscriptions in segments alone, which share nothing with those that are changed later."""
    if state.domain is None:
        return state
    parts = [
        part.at_rest() if isinstance(part, Living) else Living(merged([part], state.domain, sample)[0])
        for part in state.parts
    ]
    return replace(state, indexed=tuple(parts), fresh=None)


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
