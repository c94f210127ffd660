"""What a View has chosen is said, and every attribute that it cannot key is warned of."""

from __future__ import annotations

import pytest

from tidings.errors import DomainError
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.systems.overlay import overlay_named
from tidings.systems.protocols.content import Content
from tidings.systems.statistics import sampled_statistics
from tidings.systems.view_notes import ViewNotes, notes_of

PRICE = Attribute("price", "double", min=0.0, max=20.0, precision=0.01)
NOTE = Attribute("note", "string")
TAGS = Attribute("tags", "array<string>")
DOMAIN = Domain("stocks", [PRICE, NOTE, TAGS])


def notes(system: str, content: Content) -> ViewNotes:
    named = overlay_named(system)
    return notes_of(named.overlay.ground(content, named.settings()).view, content.statistics)


@pytest.mark.parametrize(
    ("system", "chosen", "unkeyed"),
    [
        ("opchord", "places by price (2,001 values), note (each value, no ranges); from the declaration", ["tags"]),
        ("chord", "places by price (each value), note (each value, no ranges); from the declaration", ["tags"]),
        ("digests", "places by price (16 intervals), note (each value); from the declaration", ["tags"]),
        ("clusters", "places by price (16 cells); from the declaration", ["note", "tags"]),
        ("bluedove", "places by price; from the declaration", ["note", "tags"]),
    ],
)
def test_what_was_chosen_is_said_and_what_is_not_keyed_is_warned_of(
    system: str, chosen: str, unkeyed: list[str]
) -> None:
    found = notes(system, Content(DOMAIN))
    assert found.chosen == f"domain 'stocks': {system} {chosen}"
    assert [warning.split("'")[3] for warning in found.warnings] == unkeyed


def test_indices_are_named_with_what_they_are_made_of() -> None:
    domain = Domain("stocks", [PRICE, NOTE], indices=[("note", "price")])
    assert (
        "the indices note×price, of note (each value), price (16 intervals)" in notes("digests", Content(domain)).chosen
    )


def test_a_warning_says_what_would_help() -> None:
    free, tags = notes("clusters", Content(DOMAIN)).warnings
    assert "has no allowed values: declare them, or give a sample of events" in free
    assert "has the type array<string>, whose values have no order" in tags


def test_an_attribute_beyond_those_that_are_taken_is_warned_of() -> None:
    domain = Domain("many", [Attribute(f"n{number}", "int", min=0, max=9) for number in range(8)])
    (first, second) = notes("clusters", Content(domain)).warnings
    assert "'n6', which is not among the attributes that it has chosen (n0, n1" in first
    assert "'n7'" in second
    assert len(notes("bluedove", Content(domain)).warnings) == 4


def test_a_sample_is_said_and_keys_what_is_not_declared() -> None:
    events = read_events([{"price": float(number), "note": f"n{number % 7}"} for number in range(50)], DOMAIN)
    found = notes("opchord", Content(DOMAIN, sampled_statistics(events)))
    assert found.chosen.endswith("note (8 quantiles); from a sample of 50 events")
    assert len(found.warnings) == 1


def test_a_domain_that_nothing_of_can_be_placed_by_is_refused() -> None:
    with pytest.raises(
        DomainError, match=r"opchord can place by no attribute: 'x' has no ends: declare a min and a max"
    ):
        notes("opchord", Content(Domain("bare", [Attribute("x", "double")])))
