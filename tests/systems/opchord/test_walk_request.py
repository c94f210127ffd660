"""A walk that was asked for: what has been reported of it, and what has to be repeated."""

from __future__ import annotations

import pytest

from tidings.systems.geometry.node_ring import Arc
from tidings.systems.opchord.messages import Entry, Store, Stored
from tidings.systems.opchord.walk_request import WalkRequest


@pytest.mark.parametrize(
    ("reports", "gaps"),
    [
        ([], [(5, 90)]),
        ([(5, 90)], []),
        ([(5, 20)], [(25, 70)]),
        ([(45, 50)], [(5, 40)]),
        ([(25, 10), (5, 10)], [(15, 10), (35, 60)]),
        ([(25, 10), (5, 20), (35, 60)], []),
        ([(0, 200)], [(5, 90)]),  # of somebody who does not know what was asked for
    ],
)
def test_what_is_not_reported_of_a_walk_is_repeated(
    reports: list[tuple[int, int]], gaps: list[tuple[int, int]]
) -> None:
    request = WalkRequest("s", Store(Entry(1, 0, "a > 0", 0, 0), Arc(5, 90), 7, False, 0, 0))
    ended = [request.report(Stored(7, Arc(*part), 1), 255) for part in reports]
    assert request.gaps(255) == [Arc(*part) for part in gaps]
    assert (ended[-1] if ended else False) == (not gaps)


def test_a_request_whose_reports_make_no_sense_is_bounded() -> None:
    request = WalkRequest("s", Store(Entry(1, 0, "a > 0", 0, 0), Arc(0, (1 << 20) - 1), 7, False, 0, 0))
    for at in range(3_000):
        request.report(Stored(7, Arc(3 * at + 1, 0), 0), (1 << 20) - 1)
    assert len(request.covered) <= 1_024
