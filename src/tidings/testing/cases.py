"""A domain with events and filters over it, from any source of chance."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tidings.errors import FilterError
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.testing.filter_texts import FilterWriter
from tidings.testing.generate import Generator


@dataclass(frozen=True)
class Case:
    """Filters and events over one domain; the filters are often true of the events."""

    domain: Domain
    events: list[dict[str, Any]]
    filters: list[str]

    def readable(self) -> list[tuple[int, str]]:
        """The filters that are in the language, each with its number: some that are generated are refused."""
        return [(number, text) for number, text in enumerate(self.filters) if _is_readable(text, self.domain)]


def _is_readable(text: str, domain: Domain) -> bool:
    try:
        parse_filter(text, domain)
    except FilterError:
        return False
    return True


def make_case(random: Random, *, events: int, filters: int, size: int = 14) -> Case:
    """A case of so many events, filters and attributes, whose filters have values of the events."""
    generator = Generator(random)
    domain = generator.domain(size=size)
    made = generator.events(domain, events)
    writer = FilterWriter(random, domain, [read_record(event, domain) for event in made])
    return Case(domain, made, [writer.filter() for _ in range(filters)])
