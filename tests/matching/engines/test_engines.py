"""Every engine finds what the scan of all boxes finds; the vector operations do what their twins say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.matching.full_scan import scan

from tidings import Attribute, Domain, Matcher
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels import simd
from tidings.matching import index as index_module
from tidings.matching.batch_columns import Columns
from tidings.matching.engines import blocks
from tidings.matching.index import FilterIndex, build_index
from tidings.model.event import read_events
from tidings.testing import workloads
from tidings.testing.random_cases import make_case

BYTES = st.binary(min_size=simd.WIDE, max_size=simd.WIDE)


@numba.njit
def _masks(lows: Any, highs: Any, value: Any, low: Any, high: Any) -> Any:
    first, second = np.uint64(lows.ctypes.data), np.uint64(highs.ctypes.data)
    return (
        simd.ranges_holding(first, second, value),
        simd.many_ranges_holding(first, second, value),
        simd.ranges_touching(first, second, value),
        simd.values_within(first, low, high),
    )


@given(BYTES, BYTES, st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_a_vector_operation_does_what_its_plain_twin_says(
    lows: bytes, highs: bytes, value: int, low: int, high: int
) -> None:
    first, second = (np.frombuffer(data, np.uint8) for data in (lows, highs))
    assert _masks(first, second, np.uint8(value), np.uint8(low), np.uint8(high)) == (
        simd.ranges_holding_plain(first[: simd.LANES], second[: simd.LANES], value),
        simd.ranges_holding_plain(first, second, value),
        simd.ranges_touching_plain(first, second, value),
        simd.values_within_plain(first, low, high),
    )


@numba.njit
def _chosen(numbers: Any, bits: Any, to: Any) -> Any:
    simd.write_chosen(np.uint64(numbers.ctypes.data), bits, np.uint64(to.ctypes.data))
    return simd.count_bits(bits)


COMPRESSING = pytest.mark.skipif(not simd.COMPRESSES, reason="the processor has no instruction for it (AVX-512)")


@COMPRESSING
@given(st.integers(0, 2**simd.WIDE - 1))
def test_the_numbers_whose_bits_are_set_are_written_one_after_the_other(bits: int) -> None:
    numbers, to = np.arange(100, 100 + simd.WIDE, dtype=np.int32), np.full(simd.WIDE + 1, -1, np.int32)
    chosen = [100 + lane for lane in range(simd.WIDE) if bits >> lane & 1]
    assert _chosen(numbers, np.uint64(bits), to) == len(chosen)
    assert to[: len(chosen)].tolist() == chosen
    assert to[-1] == -1, "no more than the room for all is written to"


@pytest.mark.parametrize("compresses", [pytest.param(True, marks=COMPRESSING), False])
def test_blocks_write_the_same_with_and_without_the_instruction_for_it(
    compresses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other branch is compiled anew, and thrown away."""
    monkeypatch.setattr(blocks, "COMPRESSES", compresses)
    monkeypatch.setattr(blocks, "_kernel", blocks._kernel.__wrapped__)
    monkeypatch.setattr(blocks, "kernel", numba.njit(nogil=True))
    workload = workloads.bluedove(subscriptions=2000, events=100)
    filters = compile_filters(workload.filters, workload.domain)
    columns = Columns(read_events(workload.events, workload.domain))
    index = build_index(filters)
    assert index.blocks
    assert _found(index, filters, [], columns) == _scanned(filters, columns)


def _pairs(events: npt.NDArray[Any], slots: npt.NDArray[Any]) -> list[tuple[int, int]]:
    return sorted(zip(events.tolist(), slots.tolist(), strict=True))


def _found(index: FilterIndex, filters: FilterTable, texts: list[str], columns: Columns) -> list[tuple[int, int]]:
    found = index.match(columns, pa.array(texts, pa.string()))
    return _pairs(np.repeat(np.arange(columns.batch.count), np.diff(found.offsets)), found.slots)


def _scanned(filters: FilterTable, columns: Columns) -> list[tuple[int, int]]:
    return _pairs(*scan(filters, columns, np.arange(columns.batch.count)))


@pytest.fixture(params=["as estimated", "cells only", "blocks only"])
def routing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whatever the router thinks, every engine has its turn with everything it can serve."""
    if request.param == "cells only":
        monkeypatch.setattr(index_module, "MIN_BLOCKS", 1 << 40)
    if request.param == "blocks only":
        monkeypatch.setattr(index_module, "MIN_BLOCKS", 0)
        monkeypatch.setattr(index_module.Access, "blocks_ns", lambda *_: 0.0)
        monkeypatch.setattr(index_module.Access, "cells_ns", lambda *_: 1.0)
    return str(request.param)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bluedove", marks=pytest.mark.long),
        "alerts",
        pytest.param("strings", marks=pytest.mark.long),
        "mixed",
    ],
)
@pytest.mark.parametrize("sampled", [True, False])
def test_every_engine_finds_what_the_scan_finds_on_the_workloads(name: str, sampled: bool, routing: str) -> None:
    workload = getattr(workloads, name)(subscriptions=700, events=150)
    filters = compile_filters(workload.filters, workload.domain)
    columns = Columns(read_events(workload.events, workload.domain))
    index = build_index(filters, columns if sampled else None)
    assert {engine.engine for engine in index.engines} & {"cells", "blocks"}
    assert _found(index, filters, workload.filters.to_pylist(), columns) == _scanned(filters, columns)


@pytest.mark.parametrize("seed", range(4))
def test_every_engine_finds_what_the_scan_finds_on_any_filters(seed: int, routing: str) -> None:
    case = make_case(Random(seed), events=40, filters=40)
    texts = [text for _, text in case.readable()]
    filters = compile_filters(texts, case.domain)
    columns = Columns(read_events(case.events, case.domain))
    assert _found(build_index(filters, columns), filters, texts, columns) == _scanned(filters, columns)


@pytest.mark.parametrize(("stretch", "chunk"), [(64, 16), (100, 64), (40, 2048)])
def test_how_a_batch_is_cut_changes_nothing(stretch: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads.mixed(subscriptions=2000, events=150)
    filters = compile_filters(workload.filters, workload.domain)
    columns = Columns(read_events(workload.events, workload.domain))
    monkeypatch.setattr(index_module, "_STRETCH", stretch)
    monkeypatch.setattr(index_module, "_FIRST_CHUNK", chunk)
    monkeypatch.setattr(index_module, "_CHUNK_SIZES", (8, chunk))
    index = build_index(filters, columns)
    assert _found(index, filters, workload.filters.to_pylist(), columns) == _scanned(filters, columns)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 2**63 - 2, 2**63 - 1, None]), min_size=1, max_size=8))
def test_the_ends_of_64_bits_are_told_apart_and_from_null(values: list[int | None]) -> None:
    domain = Domain("ends", [Attribute("x", "bigint"), Attribute("y", "bigint")])
    ends = ["-9223372036854775808", "-9223372036854775807", "9223372036854775807", "9223372036854775806", "0"]
    texts = [f"x {op} {end}" for op in ("=", "!=", "<", "<=", ">", ">=", "<=>") for end in ends]
    texts += [f"({text} OR x IS NULL) AND y = 1" for text in texts] + ["x IS NULL", "x IS NOT NULL"]
    filters = compile_filters(texts, domain)
    columns = Columns(read_events([{"x": value, "y": 1} for value in values], domain))
    assert _found(build_index(filters), filters, texts, columns) == _scanned(filters, columns)


def test_equalities_on_two_attributes_whose_cells_have_the_same_key_are_told_apart() -> None:
    prime, wrapped = 0x9E3779B97F4A7C15, 1 << 64  # what makes a key of a code and the number of its attribute
    one = 12345
    other = (one ^ prime ^ (2 * prime) % wrapped) % wrapped
    other -= wrapped if other >= wrapped // 2 else 0
    domain = Domain("d", [Attribute("a", "bigint"), Attribute("b", "bigint")])
    matcher = Matcher([(1, f"a = {one}"), (2, f"b = {other}")], domain)
    events = [{"a": one, "b": 0}, {"a": 0, "b": other}, {"a": one, "b": other}, {"a": other, "b": one}]
    assert sorted(matcher.match(events).pairs()) == [(0, 1), (1, 2), (2, 1), (2, 2)]


def test_a_filter_with_many_intervals_on_several_attributes_stays_small_and_exact() -> None:
    domain = Domain("many", [Attribute(name, "int") for name in "abc"] + [Attribute("s", "string")])
    numbers = ", ".join(map(str, range(0, 200, 2)))
    names = ", ".join(f"'n{k}'" for k in range(60))
    texts = [
        f"a IN ({numbers}) AND b NOT IN ({numbers}) AND c IN ({numbers}) AND s NOT IN ({names})",
        f"s IN ({names})",
    ]
    filters = compile_filters(texts, domain)
    index = build_index(filters)
    assert sum(engine.entries for engine in index.engines) < 200
    events = [{"a": a, "b": b, "c": 4, "s": s} for a in (2, 3, None) for b in (2, 3) for s in ("n5", "other", "", None)]
    columns = Columns(read_events(events, domain))
    assert _found(index, filters, texts, columns) == _scanned(filters, columns)


def test_the_last_of_the_most_cells_there_can_be_is_a_cell_like_the_others(routing: str) -> None:
    domain = Domain("many", [Attribute("x", "double"), Attribute("y", "double")])
    texts = [f"x >= {k}.5 AND x <= {6000 + k} AND y >= {k}.5 AND y <= {6000 + k}" for k in range(5000)]
    filters = compile_filters(texts, domain)
    columns = Columns(read_events([{"x": x, "y": x} for x in (0.0, 40.0, 6000.0, 10998.0, 10999.0, 11000.0)], domain))
    assert _found(build_index(filters), filters, texts, columns) == _scanned(filters, columns)


def test_more_matches_than_a_buffer_holds_are_all_found() -> None:
    domain = Domain("all", [Attribute("x", "double"), Attribute("s", "string")])
    texts = [f"x > -{k}.5" for k in range(600)] + [f"s = 'a' AND x > -{k}.25" for k in range(600)]
    filters = compile_filters(texts, domain)
    columns = Columns(read_events([{"x": float(k), "s": "a"} for k in range(500)], domain))
    assert len(_found(build_index(filters), filters, texts, columns)) == 1200 * 500


def test_a_wrong_engine_is_caught() -> None:
    """The comparison can fail: an index that forgets its last constraint is told from the scan."""
    workload = workloads.alerts(subscriptions=2000, events=100)
    filters = compile_filters(workload.filters, workload.domain)
    columns = Columns(read_events(workload.events, workload.domain))
    index = build_index(filters, columns)
    assert index.cells is not None
    index.cells.bounds[:, 1] = np.iinfo(np.int64).max
    assert _found(index, filters, workload.filters.to_pylist(), columns) != _scanned(filters, columns)


@pytest.mark.long
def test_the_first_use_after_an_installation_says_that_it_compiles(tmp_path: Path) -> None:
    """A process with an empty cache says it, once; the next finds the kernels there and says nothing."""
    program = "import tidings; tidings.Matcher({'a': 'x > 1'}, {'x': 'double'}).match([{'x': 2.0}])"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert [text.count("compiles its kernels") for text in said] == [1, 0]
