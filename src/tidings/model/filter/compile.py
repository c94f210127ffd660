"""Compile a column of filters into a `FilterTable`: by shape where many share one, else one by one."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal as Choice

import numpy as np
import pyarrow as pa

from tidings.errors import FilterError
from tidings.model.domain import Domain
from tidings.model.filter.columnar import ArrowArray, Builder, FilterTable, Rows
from tidings.model.filter.lexer import lex
from tidings.model.filter.normal import normalise
from tidings.model.filter.parse import parse_filter, resolve
from tidings.model.filter.planned import Execution, Renamed
from tidings.model.filter.shapes import Attributes, Plan, Template, plan, shapes_of, template_of
from tidings.model.filter.tree import Expression, Path

_MOSTLY_NEW = 0.9  # shapes to a filter, beyond which it is not worth looking for those that differ only in names
_WORTH_A_PLAN = 8  # filters of one shape, below which arrays cost more than they save


def compile_filters(
    filters: Sequence[str] | ArrowArray,
    domain: Domain,
    *,
    on_error: Choice["raise", "reject"] = "raise",
    plans: bool = True,
) -> FilterTable:
    """The normal forms of many filters over a domain, in columns.

    A filter that cannot be read raises its FilterError, or with `on_error="reject"` is listed in
    `rejects` and matches nothing. `plans=False` reads every filter in full.
    """
    texts = _texts(filters)
    reading = _Reading(texts, domain, on_error)
    everything = np.arange(len(texts), dtype=np.int32)
    executions = list(reading.planned()) if plans else []
    reading.in_full(np.setdiff1d(everything, _joined(execution.regular() for execution in executions)))
    reading.builder.number_constants()
    # What only the numbers show (an empty range of strings) is read in full too; its constants are there already.
    reading.in_full(_joined(execution.finish() for execution in executions))
    return reading.builder.build(len(texts), reading.rejects)


@dataclass(frozen=True, slots=True)
class _SameShape:
    shape: str
    template: tuple[Template, tuple[Path, ...]]
    rows: Rows


class _Reading:
    def __init__(self, texts: ArrowArray, domain: Domain, on_error: str) -> None:
        self._texts = texts
        self._domain = domain
        self._on_error = on_error
        self.builder = Builder(domain)
        self.rejects: list[tuple[int, FilterError]] = []

    def planned(self) -> Iterator[Execution]:
        """The templates that many filters share, each with the plan of its first filter."""
        if len(self._texts) < _WORTH_A_PLAN:
            return
        alike: dict[Template, list[_SameShape]] = {}
        for same in self._by_shape():
            template, _ = same.template
            alike.setdefault(template, []).append(same)
        for template, group in alike.items():
            if sum(len(same.rows) for same in group) < _WORTH_A_PLAN:
                continue
            found = self._plan(group[0], template.text)
            if found is not None and found.residual is None:
                yield self._execute(found, group)
            elif found is not None:
                for same in group:  # a residual has names of its own
                    if len(same.rows) >= _WORTH_A_PLAN and (found := self._plan(same, template.text)) is not None:
                        yield self._execute(found, [same])

    def _execute(self, plan: Plan, group: list[_SameShape]) -> Execution:
        rows = np.concatenate([same.rows for same in group])
        shape = np.repeat(np.arange(len(group)), [len(same.rows) for same in group])
        renamed = {}
        for number, planned in enumerate(group[0].template[1]):
            actual = [same.template[1][number] for same in group]
            paths = list(dict.fromkeys(actual))
            renamed[planned] = Renamed(paths, np.array([paths.index(path) for path in actual])[shape])

        def residual_of(text: str) -> Expression | None:
            found = self._plan_of(text, group[0].shape, plan.template)
            return None if found is None else found.residual

        return Execution(plan, rows, self._texts.take(pa.array(rows)), self.builder, renamed, residual_of)

    def _by_shape(self) -> Iterator[_SameShape]:
        attributes = Attributes(self._domain)
        shapes = shapes_of(self._texts)
        codes = shapes.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(codes, minlength=len(shapes.dictionary)))
        mostly_new = len(shapes.dictionary) > _MOSTLY_NEW * len(self._texts)
        for rows, shape in zip(np.split(order, ends[:-1]), shapes.dictionary.to_pylist(), strict=True):
            if mostly_new and len(rows) < _WORTH_A_PLAN:
                continue
            template = template_of(shape, attributes)
            if template is not None:
                yield _SameShape(shape, template, rows)

    def _plan(self, same: _SameShape, template: str) -> Plan | None:
        return self._plan_of(self._texts[same.rows[0]].as_py(), same.shape, template)

    def _plan_of(self, text: str, shape: str, template: str) -> Plan | None:
        try:
            lexed = lex(text)
            return plan(text, shape, template, lexed, resolve(lexed, self._domain))
        except FilterError:
            return None  # each filter of the shape says for itself what is wrong

    def in_full(self, rows: Rows) -> None:
        with _collecting_garbage_seldom():
            for row, text in zip(rows.tolist(), self._texts.take(pa.array(rows, pa.int32())).to_pylist(), strict=True):
                try:
                    self.builder.add(row, normalise(parse_filter(text, self._domain)))
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
