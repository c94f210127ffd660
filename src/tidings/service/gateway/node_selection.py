"""The nodes that a subscription's paths over XML select in an event, for who wants those in the event's place."""

from __future__ import annotations

import json
from functools import lru_cache

from tidings.errors import EventError, FilterError
from tidings.filter.meaning.selected_nodes import selected_by
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.service.gateway.known_domains import KnownDomains
from tidings.store.catalogue import Catalogue, SubscriptionRow
from tidings.store.log.event_record import parse


class Selecting:
    """Any thread may ask."""

    def __init__(self, catalogue: Catalogue, domains: KnownDomains) -> None:
        self._catalogue = catalogue
        self._domains = domains

    def nodes(self, row: SubscriptionRow, position: int, text: str) -> str:
        """As a JSON array of texts, by the filter that the subscription had at this position.

        None of them where the domain is another since, so that the filter or the event cannot be read by it.
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
