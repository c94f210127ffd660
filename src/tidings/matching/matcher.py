"""Match batches of events against a changing table of filters.

Subscriptions live in *segments*: a large one that is indexed once, and small ones for what was
added since; what is removed is marked dead. Small segments are joined as they pile up, like the
levels of a log-structured merge tree. All of them together are one immutable state: a change
builds another and swaps it in, so that a match, on any thread, sees one or the other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from typing import Literal as Choice

import numpy as np
import numpy.typing as npt

from tidings.errors import FilterError, SubscriptionError, did_you_mean
from tidings.matching.columns import Columns
from tidings.matching.explain import Explanation, explain, nearest
from tidings.matching.index import SAMPLE, EngineStats
from tidings.matching.matches import Matches
from tidings.matching.pairs import by_event
from tidings.matching.segment import Segment, compile_table, joined, segment_of
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events, read_record
from tidings.model.filter.columnar import FilterTable
from tidings.model.filter.parse import parse_filter
from tidings.model.infer import infer_domain
from tidings.model.subscription import SubscriptionTable, read_subscriptions

_JOIN_RATIO = 4  # a segment is joined to the one before it unless that one is this many times as large

_Place = tuple[int, int]  # of a subscription: its segment and slot


@dataclass(frozen=True)
class MatcherStats:
    """What a matcher holds and has done."""

    subscriptions: int
    segments: int
    bytes: int  # of the indexes, ids and texts of filters apart
    engines: tuple[EngineStats, ...]
    events: int  # matched so far
    candidates: int  # verified for them
    matched: int

    def __str__(self) -> str:
        lines = [
            f"{self.subscriptions:,} subscriptions, {self.segments} segment(s), {self.bytes / 2**20:,.1f} MiB of index",
            *(f"  {engine.engine}: {engine.entries:,} entries, {engine.reason}" for engine in self.engines),
            f"{self.events:,} events matched: {self.candidates:,} candidates tried, {self.matched:,} matches",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class _State:
    """Everything that a match reads. Before a domain is known there are no segments, only the table."""

    domain: Domain | None
    segments: tuple[Segment, ...] = ()
    pending: SubscriptionTable | None = None  # not indexed yet, with its normal forms where the domain is known
    filters: FilterTable | None = None

    def tables(self) -> list[SubscriptionTable]:
        living = [segment.living_table() for segment in self.segments]
        return living if self.pending is None else [*living, self.pending]


class Matcher:
    """An exact matcher over a set of subscriptions.

    `subscriptions` are (id, filter) pairs, Subscription objects, a dict of filters by id, an
    Arrow table or a data frame with columns id and filter. `domain` is a Domain, an Arrow or
    Spark schema, or a dict of types by name; without one, the first events that are matched
    give it. `threads` share the work of large batches: by default as many as there are cores.

    >>> matcher = Matcher([("cheap", "price < 10"), ("oil", "symbol = 'OIL' AND price > 50")])
    >>> matcher.match([{"symbol": "OIL", "price": 8.5}, {"symbol": "OIL", "price": 70.0}]).pairs()
    [(0, 'cheap'), (1, 'oil')]
    >>> matcher.upsert([("cheap", "price < 100")])
    >>> matcher.match([{"symbol": "OIL", "price": 70.0}]).pairs()
    [(0, 'oil'), (0, 'cheap')]
    """

    def __init__(self, subscriptions: Any, domain: Any = None, *, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, "tidings-match") if self._threads > 1 else None
        self._changing = threading.Lock()  # one change at a time; matches never wait for it
        self._places: dict[str | int, _Place] | None = None
        self._sample: Columns | None = None
        self._counters = [0, 0, 0]  # events, candidates, matches
        self._state = _pending(read_subscriptions(subscriptions), _as_domain(domain))

    @property
    def domain(self) -> Domain | None:
        """The domain of the events: as given, or inferred from the first events matched."""
        return self._state.domain

    def __len__(self) -> int:
        state = self._state
        pending = 0 if state.pending is None else len(state.pending)
        return pending + sum(segment.alive for segment in state.segments)

    def match(self, events: Any, positions: Any = None, *, on_error: Choice["raise", "reject"] = "raise") -> Matches:
        """The subscriptions that each event matches.

        `events` is a list of dicts, an Arrow table, or a pandas or Polars frame. With
        `positions`, one for each event, a subscription counts only within its validity. An
        event that does not fit the domain raises, or with `on_error="reject"` matches nothing
        and is listed in `rejects`.
        """
        domain = self._state.domain
        if domain is None:
            if not _has_events(events):
                return Matches(np.zeros(1, np.int64), np.empty(0, np.int32), (self._state.tables()[0].ids,), [])
            domain = infer_domain(events)
        batch = read_events(events, domain, on_error=on_error)
        state = self._ready(batch)
        count = batch.count + len({reject.row for reject in batch.rejects})
        at = None if positions is None else _positions(positions, count)[batch.rows]
        found = [self._match_segment(segment, batch, at) for segment in state.segments]
        offsets, slots = _together(found, [len(segment) for segment in state.segments], batch.count)
        if batch.rejects:
            counts = np.zeros(count, np.int64)
            counts[batch.rows] = np.diff(offsets)
            offsets = np.concatenate([[0], np.cumsum(counts)])
        for counter, more in enumerate((batch.count, sum(tried for *_, tried in found), len(slots))):
            self._counters[counter] += more
        return Matches(offsets, slots, tuple(segment.table.ids for segment in state.segments), batch.rejects)

    def add(self, subscriptions: Any) -> None:
        """Add subscriptions with new ids; the next match sees them."""
        self._change(read_subscriptions(subscriptions), replacing=False)

    def upsert(self, subscriptions: Any) -> None:
        """Add subscriptions, in place of those with the same ids; the next match sees them."""
        self._change(read_subscriptions(subscriptions), replacing=True)

    def remove(self, ids: Iterable[str | int]) -> None:
        """Remove subscriptions; the next match does not see them."""
        listed = list(dict.fromkeys(ids))
        with self._changing:
            state, places = self._indexed(), self._all_places()
            unknown = [id_ for id_ in listed if id_ not in places]
            if unknown:
                raise self._unknown(unknown[0])
            self._state = _State(state.domain, _without(state.segments, [places[id_] for id_ in listed]))
            for id_ in listed:
                del places[id_]

    def replace_all(self, subscriptions: Any) -> None:
        """Have these subscriptions and no others."""
        table = read_subscriptions(subscriptions)
        with self._changing:
            fresh = _pending(table, self._state.domain)
            self._places = None
            self._state = fresh if self._sample is None or fresh.filters is None else self._index(fresh)

    def explain(self, event: dict[str, Any], subscription_id: str | int) -> Explanation:
        """Why an event matches a subscription, or why not: predicate by predicate, with the values."""
        domain = self._domain_for(event)
        text = self._text(subscription_id)
        return explain(parse_filter(text, domain), read_record(event, domain), subscription=subscription_id, text=text)

    def nearest(self, event: dict[str, Any], limit: int = 5) -> list[Explanation]:
        """The subscriptions that an event came nearest to without matching: fewest failing predicates first."""
        domain = self._domain_for(event)
        record = read_record(event, domain)
        every = (entry for table in self._state.tables() for entry in table)
        filters = ((entry.id, entry.filter, parse_filter(entry.filter, domain)) for entry in every)
        return nearest(filters, record, limit=limit)

    def stats(self) -> MatcherStats:
        """Engines and why, bytes, candidates tried against matched."""
        segments = self._state.segments
        engines = tuple(engine for segment in segments for engine in segment.index.engines)
        size = sum(segment.index.bytes for segment in segments)
        return MatcherStats(len(self), len(segments), size, engines, *self._counters)

    # ------------------------------------------------------------------ states

    def _ready(self, batch: EventBatch) -> _State:
        """The state with all its segments, built with the first batch as the sample of what events are like."""
        state = self._state
        if state.pending is None:
            return state
        with self._changing:
            if self._sample is None:
                columns = {path: column.slice(0, SAMPLE) for path, column in batch.columns.items()}
                count = min(SAMPLE, batch.count)
                self._sample = Columns(EventBatch(batch.domain, count, columns, batch.rows[:count], [], None))
            return self._indexed(batch.domain)

    def _indexed(self, domain: Domain | None = None) -> _State:
        state = self._state
        if state.pending is not None:
            if state.domain is None and domain is not None:
                state = _from_first_events(state.pending, domain)
            if state.filters is not None:
                self._state = state = self._index(state)
        return state

    def _index(self, state: _State) -> _State:
        assert state.pending is not None
        assert state.filters is not None
        return _State(state.domain, (*state.segments, segment_of(state.pending, state.filters, self._sample)))

    def _change(self, table: SubscriptionTable, *, replacing: bool) -> None:
        if not len(table):
            return
        with self._changing:
            state = self._indexed()
            if state.domain is None:
                self._state = _pending(_changed(state.pending, table, replacing), None)
                return
            places = self._all_places()
            ids: list[Any] = table.ids.to_pylist()
            existing = [places[id_] for id_ in ids if id_ in places]
            if existing and not replacing:
                taken = next(id_ for id_ in ids if id_ in places)
                raise SubscriptionError(f"subscription {taken!r} is there already; upsert takes its place")
            if places and type(next(iter(places))) is not type(ids[0]):
                raise SubscriptionError(
                    f"the id {ids[0]!r} is not of the type of the others; all are texts or all integers"
                )
            added = segment_of(table, compile_table(table, state.domain), self._sample)
            self._state = self._joined(state.domain, (*_without(state.segments, existing), added))
            self._places = (
                None
                if len(self._state.segments) <= len(state.segments)
                else places | {id_: (len(state.segments), slot) for slot, id_ in enumerate(ids)}
            )

    def _joined(self, domain: Domain, segments: tuple[Segment, ...]) -> _State:
        """Join small segments, so that there are never many."""
        while len(segments) > 1 and len(segments[-2]) < _JOIN_RATIO * len(segments[-1]):
            table = joined([segment.living_table() for segment in segments[-2:]])
            segments = (*segments[:-2], segment_of(table, compile_table(table, domain), self._sample))
        return _State(domain, segments)

    def _match_segment(
        self, segment: Segment, batch: EventBatch, positions: npt.NDArray[np.int64] | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
        parts = segment.match(batch, self._threads, self._pool)
        slots = np.concatenate([found.slots for _, found in parts])
        counts = np.concatenate([np.diff(found.offsets) for _, found in parts])
        if segment.dead is not None or positions is not None:
            events = np.repeat(np.arange(len(counts)), counts)
            kept = np.ones(len(slots), bool) if segment.dead is None else ~segment.dead[slots]
            if positions is not None:
                kept &= _valid(segment.table, positions[events], slots)
            slots, counts = slots[kept], np.bincount(events[kept], minlength=len(counts))
        return counts, slots, sum(found.tried for _, found in parts)

    # ------------------------------------------------------------------ ids

    def _all_places(self) -> dict[str | int, _Place]:
        if self._places is None:
            self._places = {}
            for number, segment in enumerate(self._state.segments):
                ids: list[Any] = segment.table.ids.to_pylist()
                dead = segment.dead
                for slot, id_ in enumerate(ids):
                    if dead is None or not dead[slot]:
                        self._places[id_] = (number, slot)
        return self._places

    def _text(self, subscription_id: str | int) -> str:
        for table in self._state.tables():
            ids: list[Any] = table.ids.to_pylist()
            if subscription_id in ids:
                return str(table.filters[ids.index(subscription_id)].as_py())
        raise self._unknown(subscription_id)

    def _unknown(self, subscription_id: str | int) -> SubscriptionError:
        known: list[Any] = [id_ for table in self._state.tables() for id_ in table.ids[:10_000].to_pylist()]
        return SubscriptionError(
            f"no subscription '{subscription_id}'; {did_you_mean(str(subscription_id), map(str, known))}"
        )

    def _domain_for(self, event: dict[str, Any]) -> Domain:
        return self._state.domain or infer_domain([event])


def _pending(table: SubscriptionTable, domain: Domain | None) -> _State:
    return _State(domain, pending=table, filters=None if domain is None else compile_table(table, domain))


def _from_first_events(table: SubscriptionTable, domain: Domain) -> _State:
    try:
        return _pending(table, domain)
    except FilterError as error:
        hint = f"{error.hint}; the first events gave the domain: give Matcher a domain that has all attributes"
        raise FilterError(error.reason, column=error.column, hint=hint) from None


def _has_events(events: Any) -> bool:
    return not hasattr(events, "__len__") or len(events) > 0


def _as_domain(domain: Any) -> Domain | None:
    """A domain as given, or from a schema or a dict of types by name."""
    if domain is None or isinstance(domain, Domain):
        return domain
    if isinstance(domain, Mapping):
        return Domain("events", [Attribute(name, type_) for name, type_ in domain.items()])
    return infer_domain(domain)


def _changed(before: SubscriptionTable | None, table: SubscriptionTable, replacing: bool) -> SubscriptionTable:
    """A table with another's subscriptions in it, before anything is indexed."""
    assert before is not None
    new: set[Any] = set(table.ids.to_pylist())
    old: list[Any] = before.ids.to_pylist()
    if not replacing and (taken := [id_ for id_ in old if id_ in new]):
        raise SubscriptionError(f"subscription {taken[0]!r} is there already; upsert takes its place")
    entries = [entry for entry in before if entry.id not in new]
    return read_subscriptions([*entries, *table])


def _without(segments: tuple[Segment, ...], places: list[_Place]) -> tuple[Segment, ...]:
    slots: dict[int, list[int]] = {}
    for number, slot in places:
        slots.setdefault(number, []).append(slot)
    return tuple(
        segment.without(np.array(slots[number])) if number in slots else segment
        for number, segment in enumerate(segments)
    )


def _positions(positions: Any, count: int) -> npt.NDArray[np.int64]:
    result = np.asarray(positions, np.int64)
    if len(result) != count:
        raise ValueError(f"{len(result)} positions for {count} events; give one for each")
    return result


def _valid(table: SubscriptionTable, at: npt.NDArray[np.int64], slots: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    valid = np.ones(len(slots), bool)
    for column, outside in ((table.valid_from, np.less), (table.valid_to, np.greater_equal)):
        if column is not None:
            bounded = column.is_valid().to_numpy(zero_copy_only=False)[slots]
            bound = column.fill_null(0).to_numpy(zero_copy_only=False)[slots]
            valid &= ~(bounded & outside(at, bound))
    return valid


def _together(
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]], sizes: list[int], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The matches of all segments by event; slots go on from one segment to the next."""
    if len(found) == 1:
        counts, slots, _ = found[0]
        return np.concatenate([[0], np.cumsum(counts)]), slots
    bases = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    events = [np.repeat(np.arange(count, dtype=np.int32), counts) for counts, *_ in found]
    shifted = [slots + base for (_, slots, _), base in zip(found, bases, strict=False)]
    empty = np.empty(0, np.int32)
    return by_event(np.concatenate([empty, *events]), np.concatenate([empty, *shifted]), count)
