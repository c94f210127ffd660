"""Match batches of events against a changing table of filters.

Subscriptions live in *parts*: segments, each indexed at one time, and a delta for those that were added last; what is
removed is marked. Parts are merged in the background as they pile up, like the levels of a log-structured merge tree.
All of them together are one immutable index version: a change makes another and swaps it in, so that a match, on any
thread, sees one or the other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from typing import Literal as Choice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filter.meaning.interpreter import selected_by
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.xpath_dialect import ATTRIBUTE, DOMAIN, check_documents, columns_of_paths, path_dialect
from tidings.matching.batch_columns import Columns
from tidings.matching.change.delta import Delta
from tidings.matching.change.delta_reader import DeltaReader
from tidings.matching.change.merge import BackgroundMerge, Part, first_to_merge, merged
from tidings.matching.change.removed import joined_matches, part_matches
from tidings.matching.change.segment import LiveSegment
from tidings.matching.change.version import (
    MatcherVersion,
    at_rest,
    changed_table,
    from_first_events,
    frozen,
    indexed_version,
    pending_version,
    table_without,
    valid_at,
    version_with,
    version_without,
    with_merged,
)
from tidings.matching.engines.cells import Visit
from tidings.matching.explain.explanation import Explanation, explain
from tidings.matching.explain.near_misses import nearest
from tidings.matching.index import SAMPLE, EngineStats, Found
from tidings.matching.matches import Matches
from tidings.matching.saving import matcher_file as storage
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events, read_record
from tidings.model.infer import infer_domain
from tidings.model.subscription import SubscriptionTable, joined_tables, read_subscriptions

DELTA = 1 << 14  # entries at least that are added before they are merged into a segment
DELTA_SHARE = 16  # and one for so many subscriptions that are indexed
GUESTS_SHARE = 2  # the same for those that are guests of a segment
MIN_EVENTS_A_THREAD = 1024


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


class Matcher:
    """An exact matcher over a set of subscriptions.

    `subscriptions` are (id, filter) pairs, Subscription objects, a dict of filters by id, an
    Arrow table or a data frame with columns id and filter. `domain` is a Domain, an Arrow or
    Spark schema, or a dict of types by name; without one, the first events that are matched
    give it. With `dialect="xpath"`, filters are paths and events are XML documents, strings or
    bytes; `namespaces` says what the paths' prefixes stand for. `threads` share the work of large
    batches: by default as many as there are cores.

    >>> matcher = Matcher([("cheap", "price < 10"), ("oil", "symbol = 'OIL' AND price > 50")])
    >>> matcher.match([{"symbol": "OIL", "price": 8.5}, {"symbol": "OIL", "price": 70.0}]).pairs()
    [(0, 'cheap'), (1, 'oil')]
    >>> matcher.upsert([("cheap", "price < 100")])
    >>> matcher.match([{"symbol": "OIL", "price": 70.0}]).pairs()
    [(0, 'oil'), (0, 'cheap')]
    """

    def __init__(
        self,
        subscriptions: Any,
        domain: Any = None,
        *,
        dialect: Choice["sql", "xpath"] = "sql",
        namespaces: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, "tidings-match") if self._threads > 1 else None
        self._changing = threading.Lock()  # one change at a time; matches never wait for it
        self._background = BackgroundMerge(self._merge)
        self._reader: DeltaReader | None = None
        self._sample: Columns | None = None
        self._replaced = 0  # how often all was
        self._counters = [0, 0, 0]  # events, candidates, matches
        self._paths = path_dialect(dialect, namespaces)
        if self._paths is not None and domain is not None:
            raise ValueError("with dialect='xpath' events are documents: leave the domain out")
        with self._own_columns():
            known = DOMAIN if self._paths is not None else _as_domain(domain)
            self._version = pending_version(self._subscriptions(subscriptions), known)

    @property
    def domain(self) -> Domain | None:
        """The domain of the events: as given, or inferred from the first events matched."""
        return self._version.domain

    def __len__(self) -> int:
        return len(self._version)

    def match(self, events: Any, positions: Any = None, *, on_error: Choice["raise", "reject"] = "raise") -> Matches:
        """Returns the subscriptions that each event matches.

        `events` is a list of dicts, an Arrow table, or a pandas or Polars frame. With
        `positions`, one for each event, a subscription counts only within its validity. An
        event that does not fit the domain raises, or with `on_error="reject"` matches nothing
        and is listed in `rejects`.
        """
        if self._paths is not None:
            return self._match_documents(self._paths.events(events), positions, on_error)
        domain = self._version.domain
        if domain is None:
            if not _has_events(events):
                return Matches(np.zeros(1, np.int64), np.empty(0, np.int32), (self._version.tables()[0].ids,), [])
            domain = infer_domain(events)
        batch = read_events(events, domain, on_error=on_error)
        version = self._ready(batch)
        count = batch.count + len({reject.row for reject in batch.rejects})
        at = None if positions is None else _positions(positions, count)[batch.rows]
        offsets, slots, tried = _match_shared(version.parts, batch, at, self._pool, self._threads)
        if batch.rejects:
            counts = np.zeros(count, np.int64)
            counts[batch.rows] = np.diff(offsets)
            offsets = np.concatenate([[0], np.cumsum(counts)])
        for counter, more in enumerate((batch.count, tried, len(slots))):
            self._counters[counter] += more
        return Matches(
            offsets, slots, tuple(table.ids for part in version.parts for table in part.tables), batch.rejects
        )

    def _match_documents(self, batch: EventBatch, positions: Any, on_error: Choice["raise", "reject"]) -> Matches:
        """Which documents cannot be read is looked for where nothing was found: in such a one nothing is."""
        version = self._ready(batch)
        at = None if positions is None else _positions(positions, batch.count)
        offsets, slots, tried = _match_shared(version.parts, batch, at, self._pool, self._threads)
        rejects = check_documents(batch, np.flatnonzero(np.diff(offsets) == 0), on_error)
        for counter, more in enumerate((batch.count - len(rejects), tried, len(slots))):
            self._counters[counter] += more
        return Matches(offsets, slots, tuple(table.ids for part in version.parts for table in part.tables), rejects)

    def add(self, subscriptions: Any) -> None:
        """Add subscriptions with new ids; the next match sees them."""
        self._change(self._subscriptions(subscriptions), replacing=False)

    def upsert(self, subscriptions: Any) -> None:
        """Add subscriptions, in place of those with the same ids; the next match sees them."""
        self._change(self._subscriptions(subscriptions), replacing=True)

    def remove(self, ids: Iterable[str | int]) -> None:
        """Remove subscriptions; the next match does not see them."""
        listed = list(dict.fromkeys(ids))
        with self._changing:
            version = self._indexed()
            self._swap(table_without(version, listed) if version.domain is None else version_without(version, listed))

    def subscriptions(self) -> pa.Table:
        """The subscriptions as a table with the columns id and filter, in no order."""
        tables = [pa.table({"id": one.ids, "filter": one.filters}) for one in self._version.tables()]
        empty: dict[str, Any] = {"id": pa.array([], pa.int64()), "filter": pa.array([], pa.string())}
        return pa.concat_tables(tables) if tables else pa.table(empty)

    def replace_all(self, subscriptions: Any) -> None:
        """Have these subscriptions and no others."""
        table = self._subscriptions(subscriptions)
        with self._changing, self._own_columns():
            replacing = pending_version(table, self._version.domain)
            self._replaced += 1
            ready = self._sample is not None and replacing.filters is not None
            self._swap(indexed_version(replacing, self._sample) if ready else replacing)

    def settle(self) -> None:
        """Wait until nothing is left to merge in the background, and raise what went wrong there, if anything did.

        Matches are the same before and after; only their cost may differ.
        """
        self._background.wait()

    def explain(self, event: Any, subscription_id: str | int) -> Explanation:
        """Why an event matches a subscription, or why not: predicate by predicate, with the values."""
        domain, event = self._domain_for(event), self._record(event)
        with self._changing:
            text = self._version.filter_text(subscription_id)
        return explain(parse_filter(text, domain), read_record(event, domain), subscription=subscription_id, text=text)

    def nearest(self, event: Any, limit: int = 5) -> list[Explanation]:
        """The subscriptions that an event came nearest to without matching: fewest failing predicates first.

        Every filter is looked at: some seconds for a million that share their shapes.
        """
        domain = self._domain_for(event)
        record = read_record(self._record(event), domain)
        tables = self._version.tables()
        if not tables:
            return []
        every = joined_tables(tables)
        return nearest(every.ids, every.filters, domain, record, limit)

    def select(self, event: Any, subscription_id: str | int) -> list[str]:
        """What the paths of a subscription select in an event that matches it: elements as XML, other nodes as text."""
        domain, event = self._domain_for(event), self._record(event)
        with self._changing:
            text = self._version.filter_text(subscription_id)
        return selected_by(parse_filter(text, domain), read_record(event, domain))

    def stats(self) -> MatcherStats:
        """Engines and why, bytes, candidates tried against matched."""
        parts = self._version.parts
        engines = tuple(engine for part in parts for engine in _engines(part))
        return MatcherStats(len(self), len(parts), sum(part.bytes for part in parts), engines, *self._counters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the matcher to a file, as it is at this moment, in place of the file that there may be."""
        with self._changing:
            version, sample = at_rest(self._version, self._sample), self._sample
        batch = None if sample is None else replace(sample.batch, source=None)
        storage.save(path, {"version": version, "sample": batch, "dialect": self._paths})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> Matcher:
        """The matcher that was saved to a file, which is mapped into memory: processes share one copy.

        The file must not be changed in place while it is in use; `save` replaces it, and a process that has it loaded
        keeps the old one. Raises SubscriptionError for a file that is damaged, is no saved matcher, or comes from
        another version.
        """
        saved = storage.load(path)
        matcher = cls([], threads=threads)
        matcher._version, matcher._paths = saved["version"], saved["dialect"]
        matcher._sample = None if saved["sample"] is None else Columns(saved["sample"])
        return matcher

    # ------------------------------------------------------------------ versions

    def _ready(self, batch: EventBatch) -> MatcherVersion:
        """The version with all its parts, built with the first batch as the sample of what events are like."""
        version = self._version
        if version.pending is None:
            return version
        with self._changing:
            if self._sample is None and batch.count:
                columns = {path: column.slice(0, SAMPLE) for path, column in batch.columns.items()}
                count = min(SAMPLE, batch.count)
                self._sample = Columns(EventBatch(batch.domain, count, columns, batch.rows[:count], [], None))
            return self._indexed(batch.domain)

    def _indexed(self, domain: Domain | None = None) -> MatcherVersion:
        version = self._version
        if version.pending is not None:
            if version.domain is None and domain is not None:
                version = from_first_events(version.pending, domain)
            if version.filters is not None:
                self._version = version = indexed_version(version, self._sample)
        return version

    def _change(self, table: SubscriptionTable, *, replacing: bool) -> None:
        if not len(table):
            return
        with self._changing, self._own_columns():
            version = self._indexed()
            if version.domain is None:
                assert version.pending is not None
                self._swap(pending_version(changed_table(version.pending, table, replacing=replacing), None))
                return
            if self._reader is None:
                self._reader = DeltaReader(version.domain)
            self._swap(version_with(version, table, self._reader, self._sample, replacing=replacing))

    def _swap(self, version: MatcherVersion) -> None:
        """Make this the current version, and start merging if that is due."""
        self._version = version
        if _due(version) is not None:
            self._background.start()

    def _merge(self) -> bool:
        """Merge what is due; returns whether anything was. Matches and changes go on meanwhile."""
        with self._changing:
            first = _due(self._version)
            if first is None:
                return False
            if first == 0 or _is_grown(self._version):  # the newest are guests of the first part
                self._version = frozen(self._version)
            before, replaced, sample = self._version, self._replaced, self._sample
        assert before.domain is not None
        segment, went = merged(before.base[first:], before.domain, sample)
        with self._changing:
            if replaced == self._replaced:
                self._version = with_merged(self._version, before, first, segment, went)
        return True

    def _domain_for(self, event: Any) -> Domain:
        return self._version.domain or infer_domain([event])

    # ------------------------------------------------------------------ dialects

    def _subscriptions(self, subscriptions: Any) -> SubscriptionTable:
        return read_subscriptions(subscriptions) if self._paths is None else self._paths.subscriptions(subscriptions)

    def _record(self, event: Any) -> Any:
        """An event as a record of the domain."""
        return event if self._paths is None else {ATTRIBUTE: self._paths.events([event]).columns[ATTRIBUTE,][0].as_py()}

    def _own_columns(self) -> AbstractContextManager[None]:
        """Errors in filters say where in what the user wrote."""
        return nullcontext() if self._paths is None else columns_of_paths()


def _match_shared(
    parts: tuple[Part, ...],
    batch: EventBatch,
    positions: npt.NDArray[np.int64] | None,
    pool: ThreadPoolExecutor | None,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
    """Offsets, slots, and how many candidates were tried; threads share a large batch."""
    shares = max(1, min(threads, batch.count // MIN_EVENTS_A_THREAD))
    if shares == 1 or pool is None:
        return _match_all(parts, batch, positions)
    starts = [batch.count * i // shares for i in range(shares + 1)]

    def match_share(number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
        start, end = starts[number], starts[number + 1]
        return _match_all(parts, batch.part(start, end), None if positions is None else positions[start:end])

    found = list(pool.map(match_share, range(shares)))
    counts = np.concatenate([[0], *(np.diff(offsets) for offsets, *_ in found)])
    return np.cumsum(counts), np.concatenate([slots for _, slots, _ in found]), sum(tried for *_, tried in found)


def _match_all(
    parts: tuple[Part, ...], batch: EventBatch, positions: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
    columns = Columns(batch)  # one for all parts: codes are computed once
    guests = next((part.guests for part in parts if isinstance(part, Delta) and part.guests is not None), None)
    visit = None if guests is None else Visit(guests.host.cells, guests.table, batch.count)
    matched, tried = [], 0
    for part in parts:
        # Guests are found in their host's cells, and are subscriptions of the delta, which comes after it.
        visiting = part.guests is guests if isinstance(part, Delta) else guests is not None and part.hosts(guests)
        found = part.match(columns, visit if visiting else None)
        tried += found.tried
        if positions is not None:
            found = _valid(part, found, positions)
        matched.append(part_matches(found.offsets, found.slots, part.removed, len(part)))
    return *joined_matches(matched, batch.count), tried


def _valid(part: Part, found: Found, positions: npt.NDArray[np.int64]) -> Found:
    counts = np.diff(found.offsets)
    events = np.repeat(np.arange(len(counts)), counts)
    kept = valid_at(part, positions[events], found.slots)
    left = np.bincount(events[kept], minlength=len(counts))
    return Found(np.concatenate([[0], np.cumsum(left)]), found.slots[kept], found.tried)


def _due(version: MatcherVersion) -> int | None:
    """Where the parts begin that are to be merged: with the delta if that has grown."""
    return first_to_merge(version.parts if _is_grown(version) else version.base)


def _is_grown(version: MatcherVersion) -> bool:
    """Whether the delta is to be merged: guests only when they are many, for they cost matches little."""
    if version.delta is None:
        return False
    base = sum(part.alive for part in version.base)
    chained, entries = version.delta.chained, version.delta.entries
    return chained >= max(DELTA, base // DELTA_SHARE) or entries >= max(DELTA, base // GUESTS_SHARE)


def _engines(part: Part) -> tuple[EngineStats, ...]:
    if isinstance(part, LiveSegment):
        return part.segment.index.engines
    reason = "added last, to be merged"
    return (EngineStats("delta", part.entries, 0, part.bytes, 0.0, reason),)


def _has_events(events: Any) -> bool:
    return not hasattr(events, "__len__") or len(events) > 0


def _as_domain(domain: Any) -> Domain | None:
    """A domain as given, or from a schema or a dict of types by name."""
    if domain is None or isinstance(domain, Domain):
        return domain
    if isinstance(domain, Mapping):
        return Domain("events", [Attribute(name, type_) for name, type_ in domain.items()])
    return infer_domain(domain)


def _positions(positions: Any, count: int) -> npt.NDArray[np.int64]:
    result = np.asarray(positions, np.int64)
    if len(result) != count:
        raise ValueError(f"{len(result)} positions for {count} events; give one for each")
    return result
