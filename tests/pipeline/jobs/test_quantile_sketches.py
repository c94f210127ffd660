"""Quantiles of parts merged are those of the whole, to within what the sketches left out."""

from __future__ import annotations

import numpy as np
import pytest

from tidings.pipeline.jobs.adaptation import merged, sketch_of


@pytest.mark.parametrize("name", ["uniform", "skewed", "few values"])
def test_quantiles_of_merged_parts_are_near_those_of_the_whole(name: str) -> None:
    rng = np.random.default_rng(4)
    whole = {
        "uniform": rng.integers(0, 10**12, 200_000),
        "skewed": (rng.pareto(1.1, 200_000) * 1000).astype(np.int64),
        "few values": rng.integers(0, 7, 200_000),
    }[name]
    parts = np.split(whole, [5, 5, 60_000, 61_000])
    found = merged([merged([sketch_of(part, nulls=3), sketch_of(part[:0])]) for part in parts])
    assert found.count == pytest.approx(len(whole))
    distribution = found.distribution(101)
    ordered = np.sort(whole)
    low = np.searchsorted(ordered, distribution.quantiles, side="left") / len(whole)
    high = np.searchsorted(ordered, distribution.quantiles, side="right") / len(whole)
    wanted = np.linspace(0, 1, len(distribution.quantiles))
    assert (low - 0.005 <= wanted).all()
    assert (wanted <= high + 0.005).all()
    assert distribution.nulls == pytest.approx(15 / (len(whole) + 15))
    assert name != "few values" or distribution.distinct == 7


def test_texts_have_sketches_too() -> None:
    words = np.empty(9000, object)
    words[:] = [f"w{i % 300:03d}".encode() for i in range(9000)]
    found = merged([sketch_of(words[:4500]), sketch_of(words[4500:])]).distribution(4)
    assert found.distinct == 300
    assert [place[:2] for place in found.quantiles] == [b"w0", b"w0", b"w1", b"w2"] or len(found.quantiles) == 4


def test_nothing_has_a_sketch() -> None:
    found = merged([sketch_of(np.empty(0, np.int64), nulls=4)])
    assert not found.distribution().is_known
    assert found.distribution().nulls == 1
