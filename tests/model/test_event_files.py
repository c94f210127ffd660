"""Files of events, and samples of them."""

from __future__ import annotations

from tidings.model.event_files import sampled


def test_a_sample_of_many_items_is_even_and_the_same_every_time() -> None:
    taken = sampled(range(10_000), 1_000)
    assert taken == sampled(range(10_000), 1_000) == sorted(taken)
    assert len(set(taken)) == 1_000
    assert 4_500 < sum(taken) / len(taken) < 5_500
    assert sampled(range(5), 10) == [0, 1, 2, 3, 4]
