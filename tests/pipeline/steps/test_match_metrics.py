from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.pipeline.steps.match_metrics import counts_since


def test_what_was_counted_in_between_is_the_difference() -> None:
    before = {1: (10, 20, 300), 2: (5, 5, 5)}
    now = {1: (14, 21, 900), 2: (5, 5, 5), 3: (1, 0, 7)}
    assert counts_since(now, before) == {1: (4, 1, 600), 3: (1, 0, 7)}


def test_counters_that_began_again_are_counted_from_nothing() -> None:
    assert counts_since({1: (4, 1, 9)}, {1: (10, 20, 300)}) == {1: (4, 1, 9)}
    assert counts_since({2: (4, 1, 9)}, {1: (10, 20, 300)}) == {2: (4, 1, 9)}
