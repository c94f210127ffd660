"""Compile a column of filters into a `FilterTable`: by shape where many share one, else one by one."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal as Choice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import FilterError
from tidings.filter.compile.filter_reader import FilterReader
from tidings.filter.compile.plan_execution import Execution
from tidings.filter.compile.plans import plan
from tidings.filter.compile.shapes import served_by_plans
from tidings.filter.normal.filter_table import FilterTable, FilterTableBuilder, Rows
from tidings.filter.normal.normal_form import normalise
from tidings.filter.syntax.parser import parse_filter
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain


def compile_filters(
    filters: Sequence[str] | ArrowArray,
    domain: Domain,
    *,
    on_error: Choice["raise", "reject"] = "raise",
    plans: bool = True,
) -> FilterTable:
    """The normal forms of many filters over a domain, in columns.

    A filter that cannot be read raises its FilterError, or with `on_error="reject"` is listed in
    `rejects` and matches nothing. `plans=False` reads every filter by itself, with the same result.
    """
    texts = _texts(filters)
    reading = _Reading(texts, domain, on_error, plans)
    everything = np.arange(len(texts), dtype=np.int32)
    with _collecting_garbage_seldom():
        executions = list(reading.planned()) if plans else []
        reading.in_full(np.setdiff1d(everything, _joined(execution.regular() for execution in executions)))
        reading.builder.number_constants()
        # What only the numbers show (an empty range of strings) is read in full too; its constants are there already.
        reading.in_full(_joined(execution.finish() for execution in executions))
        return reading.builder.build(len(texts), reading.rejects)


class _Reading:
    def __init__(self, texts: ArrowArray, domain: Domain, on_error: str, plans: bool) -> None:
        self._texts = texts
        self._domain = domain
        self._on_error = on_error
        self._read = FilterReader(domain).read if plans else partial(parse_filter, domain=domain)
        self.builder = FilterTableBuilder(domain)
        self.rejects: list[tuple[int, FilterError]] = []

    def planned(self) -> Iterator[Execution]:
        """The filters that share a plan, plan by plan."""
        for served in served_by_plans(self._texts, self._domain, plan):
            yield Execution(served, self.builder)

    def in_full(self, rows: Rows) -> None:
        for row, text in zip(rows.tolist(), self._texts.take(pa.array(rows, pa.int32())).to_pylist(), strict=True):
            try:
                self.builder.add(row, normalise(self._read(text)))
            except FilterError as error:
                if self._on_error == "raise":
                    raise
                self.rejects.append((row, error))


@contextmanager
def _collecting_garbage_seldom() -> Iterator[None]:
    """A filter is hundreds of small objects that soon go by themselves: looking for garbage after every few takes
    as long as the parsing."""
    thresholds = gc.get_threshold()
    gc.set_threshold(max(thresholds[0], 200_000), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _texts(filters: Sequence[str] | ArrowArray) -> ArrowArray:
    if isinstance(filters, pa.ChunkedArray):
        filters = filters.combine_chunks()
    if isinstance(filters, pa.Array):
        if filters.null_count:
            raise FilterError(f"filter {pc.index(filters.is_null(), True).as_py()} is NULL, not text")
        return filters if filters.type == pa.string() else filters.cast(pa.string())
    for row, text in enumerate(filters):
        if not isinstance(text, str):
            raise FilterError(f"filter {row} is {type(text).__name__}, not text")
    try:
        return pa.array(filters, pa.string())
    except UnicodeEncodeError as error:
        raise FilterError(f"a filter is not valid Unicode: {error}") from None


def _joined(parts: Iterable[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int32), *parts])
