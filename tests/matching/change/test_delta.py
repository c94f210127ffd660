"""The delta: subscriptions that were added since the base was built."""

from __future__ import annotations

import pytest

from tidings import Matcher
from tidings.matching.change import delta


def test_more_pairs_than_the_first_buffers_hold_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_PAIRS", 4)
    matcher = Matcher([("base", "x = -1")], {"x": "bigint"})
    matcher.add([(f"s{number}", f"x >= {number}") for number in range(20)])
    found = matcher.match([{"x": 30}, {"x": 9}])
    assert [len(found.of(event)) for event in range(2)] == [20, 10]
