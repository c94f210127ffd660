"""What nodes place by, in words: what a View has chosen, and which attributes it cannot key."""

from __future__ import annotations

from typing import NamedTuple

from tidings.errors import DomainError
from tidings.model.domain import path_text
from tidings.model.types import Path
from tidings.systems.geometry.line_positions import has_places
from tidings.systems.interface import DescribesParts, View, listed
from tidings.systems.statistics import Statistics


class ViewNotes(NamedTuple):
    """What a user should know of a View."""

    chosen: str
    warnings: tuple[str, ...]  # one for each attribute that is not keyed


def notes_of(view: View, statistics: Statistics) -> ViewNotes:
    """Returns what a View places by, and what not; raises DomainError if it can place by no attribute."""
    domain = statistics.filters.domain
    where = f"domain '{domain.name}': {view.placement}"
    unkeyed = {path: _reason(path, view, statistics) for path in domain.leaves if path not in view.paths}
    if not view.paths:
        reasons = ", ".join(f"'{path_text(path)}' {reason}" for path, reason in unkeyed.items())
        raise DomainError(f"{where} can place by no attribute: {reasons}")
    if not set(view.paths) & set(domain.leaves):
        return ViewNotes(f"{where} places by no attribute, as it was set to", ())
    parts = ", ".join(_described(path, view) for path in view.paths)
    indices = f"the indices {view.described()}, of " if "×" in view.described() else ""
    known = f"a sample of {statistics.events.count:,} events" if statistics.events is not None else "the declaration"
    return ViewNotes(
        f"{where} places by {indices}{parts}; from {known}",
        tuple(
            f"{where} does not place by '{path_text(path)}', which {reason}; a filter that constrains nothing else "
            "meets every event"
            for path, reason in unkeyed.items()
        ),
    )


def _described(path: Path, view: View) -> str:
    detail = f" ({view.described_parts(path)})" if isinstance(view, DescribesParts) else ""
    return path_text(path) + detail


def _reason(path: Path, view: View, statistics: Statistics) -> str:
    type_ = statistics.filters.domain.leaves[path]
    if not has_places(type_):
        return f"has the type {type_}, whose values have no order"
    if not statistics.along(path).is_known:
        lacks = "allowed values: declare them" if type_.name == "string" else "ends: declare a min and a max"
        return f"has no {lacks}, or give a sample of events"
    return f"is not among the attributes that it has chosen ({listed(view.paths)})"
