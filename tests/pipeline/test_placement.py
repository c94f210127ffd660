"""`auto` takes what fits an executor, of two the cheaper, and says why."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidings.pipeline.placement import ROUTE_NS, Estimate, Wishes, choose, estimated, parse_bytes
from tidings.testing.workloads import WORKLOADS

MB = 2**20


def made(*, size: float, match_ns: float, largest: float = 0.2, met: float = 0.1) -> Estimate:
    return Estimate(1_000_000, size, match_ns, ("a", "b"), 8, largest, met, 3.0)


@pytest.mark.parametrize(
    ("case", "memory", "cores", "chosen", "why"),
    [
        (made(size=100 * MB, match_ns=ROUTE_NS), 1000 * MB, 1, "replicated", "cheaper"),
        (made(size=100 * MB, match_ns=3 * ROUTE_NS), 1000 * MB, 1, "bluedove", "cheaper"),
        (made(size=100 * MB, match_ns=ROUTE_NS), 50 * MB, 1, "bluedove", "it alone fits the 50.0 MiB"),
        (made(size=100 * MB, match_ns=ROUTE_NS), 50 * MB, 4, "replicated", "neither fits the 50.0 MiB"),
        (Estimate(10, 1.0, 1.0), 1, 1, "replicated", "no attribute can be a dimension"),
    ],
)
def test_auto_takes_what_fits_and_of_two_the_cheaper(
    case: Estimate, memory: int, cores: int, chosen: str, why: str
) -> None:
    choice = choose(case, memory, cores)
    assert choice.placement == chosen
    assert why in choice.reasons[-1]


@pytest.mark.parametrize(
    ("text", "count"),
    [("512m", 512 * MB), ("2g", 2048 * MB), ("1.5GB", 1536 * MB), ("7", 7), ("64MiB", 64 * MB), (5, 5)],
)
def test_sizes_are_read_as_spark_writes_them(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="'much' is no size"):
        parse_bytes("much")


def test_narrow_ranges_over_shared_attributes_are_worth_dimensions_and_scattered_ones_are_not() -> None:
    shares = {}
    for name in ("bluedove", "alerts"):
        workload = WORKLOADS[name](2_000, 10)
        sample = pa.table({"id": np.arange(2_000), "filter": workload.filters})
        shares[name] = estimated(sample, 1_000_000, workload.domain, workload.events, Wishes(segments=20), 2)
    assert set(shares["bluedove"].dimensions) == set("abcd")
    assert shares["bluedove"].met < 0.4
    assert shares["alerts"].met > 0.7  # a subscription constrains 3 of 20 attributes, and is everywhere in the others
