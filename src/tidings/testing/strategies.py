"""Hypothesis strategies for domains, events and filters, XML documents and paths.

They drive the same generator as the bulk comparison does (`tidings.testing.random_data`), with
Hypothesis's choices for chance, so that a failing example is shrunk.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from tidings.model.domain import Domain
from tidings.testing.random_cases import Case, FilterWriter, make_case
from tidings.testing.random_data import Generator, make_document, make_path

_chance: st.SearchStrategy[Random] = st.randoms(use_true_random=False)


def domains(*, size: int = 5) -> st.SearchStrategy[Domain]:
    """Domains of so many attributes, three or more, of any type, some nested, some with odd names."""
    return _chance.map(lambda random: Generator(random).domain(size=size))


def events(domain: Domain) -> st.SearchStrategy[dict[str, Any]]:
    """Events of a domain as a publisher writes them, with NULLs, gaps and extremes."""
    return _chance.map(lambda random: Generator(random).event(domain))


def filters(domain: Domain) -> st.SearchStrategy[str]:
    """Filters over a domain, as text. A few are refused, as their types do not meet."""
    return _chance.map(lambda random: FilterWriter(random, domain, ()).filter())


def cases(*, events: int = 2, filters: int = 2, size: int = 5) -> st.SearchStrategy[Case]:
    """A domain with events and filters that have values in common."""
    return _chance.map(lambda random: make_case(random, events=events, filters=filters, size=size))


def documents() -> st.SearchStrategy[str]:
    """Small XML documents."""
    return _chance.map(make_document)


def paths() -> st.SearchStrategy[str]:
    """Paths over them, with prefixes of `random_data.NAMESPACES`."""
    return _chance.map(make_path)
