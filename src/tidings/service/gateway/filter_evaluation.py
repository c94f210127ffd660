"""Filters evaluated in the gateway: which subscriptions an event matches now, and which XML nodes one selects.

Only Spark decides what is delivered. `CurrentMatches` explains one event to a person, from the same catalogue and with
the same matcher, so that the two agree; a domain's matcher is built when it is first asked for and follows the
catalogue from then on. `NodeSelection` finds the nodes for subscribers that want those instead of the event.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from tidings.errors import EventError, FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.meaning.interpreter import selected_by
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.matching.explain.explanation import Explanation
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.model.subscription import Subscription
from tidings.service.gateway.catalogue_cache import KnownDomain, KnownDomains
from tidings.service.gateway.problems import Problem
from tidings.store.catalogue import Catalogue, FilterRow, SubscriptionRow
from tidings.store.log.event_record import parse

_KEPT = 16  # domains with a matcher
MAX_CHARACTERS = 5_000_000  # of a domain's filters, about 150,000 short ones: what is longer takes minutes to compile


class CurrentMatches:
    """Matchers by domain. Threads may share it; calls for one domain run one at a time."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # of domains
        self._changing = threading.Lock()  # of these two; not held while anything is computed

    def of(
        self, known: KnownDomain, event: dict[str, Any], position: int, limit: int
    ) -> tuple[list[str], list[Explanation]]:
        """Returns the ids of the subscriptions that an event matches, and explains which it nearly matches.

        Raises a Problem if the filters of the domain have more than MAX_CHARACTERS.
        """
        with self._changing:
            lock = self._locks.setdefault(known.key, threading.Lock())
        with lock:
            kept = self._current(known)
            rows = [row for row in kept.rows.values() if row.valid_at(position)]
            try:
                numbers = kept.matcher.match([event], [position]).of(0)
                record = read_record(event, known.domain)
            except EventError:  # the domain has changed since: it matches nothing, and is near nothing
                return [], []
            matched = [kept.rows[int(number)].subscription for number in numbers if int(number) in kept.rows]
        from tidings.matching.explain.near_misses import nearest  # loads the compiler, as the matcher does

        ids = pa.array([row.subscription for row in rows], pa.string())
        texts = pa.array([row.filter for row in rows], pa.string())
        return sorted(set(matched)), nearest(ids, texts, known.domain, record, limit)

    def _current(self, known: KnownDomain) -> _Kept:
        row = known.row
        revision = self._catalogue.revision(row.tenant, row.name)
        with self._changing:
            kept = self._kept.get(known.key)
        if kept is None or kept.domain != known.domain:
            self._refuse_too_many(known)
            kept = _Kept(known.domain, self._catalogue.filters_of(row.tenant, row.name))
        elif kept.revision != revision:
            self._refuse_too_many(known)
            kept.follow(self._catalogue.changed_filters(row.tenant, row.name, kept.revision))
        kept.revision = revision
        with self._changing:
            self._kept[known.key] = kept
            self._kept.move_to_end(known.key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return kept

    def _refuse_too_many(self, known: KnownDomain) -> None:
        characters = self._catalogue.filter_characters(known.row.tenant, known.row.name)
        if characters > MAX_CHARACTERS:
            raise Problem(
                422,
                "limit",
                f"the filters of the domain '{known.row.name}' have {characters:,} characters, and the matches of an "
                f"event are found for at most {MAX_CHARACTERS:,}; ask about one filter with POST /v1/filters:test",
                limit="matches_filter_characters",
                value=MAX_CHARACTERS,
            )


class _Kept:
    """The filters of one domain, and their matcher."""

    def __init__(self, domain: Domain, rows: list[FilterRow]) -> None:
        self.domain = domain
        self.revision = -1
        self.rows = self._sound(rows)
        from tidings.matching.matcher import (
            Matcher,
        )  # loads the compiler, a third of the time that a gateway takes to start

        self.matcher = Matcher([_subscription(row) for row in self.rows.values()], domain, threads=1)

    def follow(self, changed: list[FilterRow]) -> None:
        begun = self._sound(changed)
        self.rows |= begun
        self.matcher.upsert([_subscription(row) for row in begun.values()])

    def _sound(self, rows: list[FilterRow]) -> dict[int, FilterRow]:
        """Returns the filters that are or were valid, by number; without those that do not fit the domain as it is."""
        begun = [row for row in rows if row.valid_from is not None]
        rejects = compile_filters([row.filter for row in begun], self.domain, on_error="reject").rejects
        broken = {place for place, _ in rejects}
        return {row.number: row for place, row in enumerate(begun) if place not in broken}


def _subscription(row: FilterRow) -> Subscription:
    assert row.valid_from is not None
    ends = None if row.valid_to is None else max(row.valid_to, row.valid_from)
    return Subscription(row.number, row.filter, valid_from=row.valid_from, valid_to=ends)


class NodeSelection:
    """Finds the nodes that filters select. Threads may share it."""

    def __init__(self, catalogue: Catalogue, domains: KnownDomains) -> None:
        self._catalogue = catalogue
        self._domains = domains

    def nodes(self, row: SubscriptionRow, position: int, text: str) -> str:
        """Returns the nodes as a JSON array of texts, by the filter that the subscription had at this position.

        The array is empty if the domain has changed so that the filter or the event no longer fits it.
        """
        definition = self._definition(row)
        found: list[str] = []
        if definition is not None:
            try:
                domain, filter = _domain(definition), _filter_at(row, position)
                found = selected_by(_parsed(definition, filter), read_record(parse(text), domain))
            except (FilterError, EventError):
                pass
        return json.dumps(found, ensure_ascii=False)

    def _definition(self, row: SubscriptionRow) -> str | None:
        known = self._domains.remembered(row.tenant, row.domain)
        found = known.row if known is not None else self._catalogue.domain(row.tenant, row.domain)
        return None if found is None else found.definition


def _filter_at(row: SubscriptionRow, position: int) -> str:
    for filter in row.filters:
        start, end = filter.deliver_from, filter.valid_to
        if start is not None and start <= position and (end is None or position < end):
            return filter.filter
    return row.filter


@lru_cache(maxsize=64)
def _domain(definition: str) -> Domain:
    return Domain.from_json(definition)


@lru_cache(maxsize=4096)
def _parsed(definition: str, filter: str) -> Expression:
    return parse_filter(filter, _domain(definition))
