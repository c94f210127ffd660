"""What a stream counts as received: only what is so far back that its reader must have it, and in little memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.pulling import Received
from tidings.service.settings import Settings


@pytest.mark.parametrize("seed", range(5))
def test_what_counts_as_received_lies_a_window_back_and_hardly_more(seed: int) -> None:
    chance = random.Random(seed)
    settings = Settings(stream_window_bytes=chance.choice([10_000, 10**9]), stream_window_notifications=2_000)
    received = Received(settings)
    written: list[tuple[int, int]] = [(0, 0)]  # bytes and notifications, up to each position
    size = count = last = 0
    for position in range(1, 5_000):
        more, bytes_ = chance.choice([1, 1, 5]), chance.choice([3, 40])
        size, count = size + bytes_, count + more
        written.append((size, count))
        passed = received.written(position, more, bytes_)
        if passed is not None:
            assert passed > last
            last = passed
            behind = (size - written[passed][0], count - written[passed][1])
            assert behind[0] >= settings.stream_window_bytes or behind[1] >= settings.stream_window_notifications
        behind = (size - written[last][0], count - written[last][1])
        assert behind[0] <= settings.stream_window_bytes * 1.1
        assert behind[1] <= settings.stream_window_notifications * 1.1


def test_an_endless_stream_of_small_notifications_needs_little_memory() -> None:
    received = Received(Settings())
    tracemalloc.start()
    try:
        for position in range(40_000):
            received.written(position + 10**6, 1, 100)
        assert tracemalloc.get_traced_memory()[0] < 64 << 10
    finally:
        tracemalloc.stop()
