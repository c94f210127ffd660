"""Compile a column of filters into a `FilterTable`: by shape where many share one, else one by one."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal as Choice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import FilterError
from tidings.model.domain import Domain
from tidings.model.filter.columnar import ArrowArray, Builder, FilterTable, Rows
from tidings.model.filter.lexer import lex
from tidings.model.filter.literals import Holes
from tidings.model.filter.normal import normalise
from tidings.model.filter.parse import parse_filter, resolve
from tidings.model.filter.planned import Execution, Renamed
from tidings.model.filter.plans import Plan, plan
from tidings.model.filter.predicates import PredicateReader
from tidings.model.filter.shapes import Attributes, Template, shapes_of, template_of, texts_in_holes
from tidings.model.filter.tree import Expression, Path

Numbers = npt.NDArray[np.int64]

_MOSTLY_NEW = 0.9  # shapes to a filter, beyond which it is not worth looking for those that differ only in names
_WORTH_A_PLAN = 8  # filters of one shape, below which arrays cost more than they save
_MAX_PLANS = 256  # of one template
_MAX_FAILURES = 8  # filters of one template that give no plan, before the others are given up too


def compile_filters(
    filters: Sequence[str] | ArrowArray,
    domain: Domain,
    *,
    on_error: Choice["raise", "reject"] = "raise",
    plans: bool = True,
) -> FilterTable:
    """The normal forms of many filters over a domain, in columns.

    A filter that cannot be read raises its FilterError, or with `on_error="reject"` is listed in
    `rejects` and matches nothing. `plans=False` reads every filter by itself,
    to the same end.
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


@dataclass(frozen=True, slots=True)
class _SameShape:
    shape: str
    template: tuple[Template, tuple[Path, ...]]
    rows: Rows


class _Reading:
    def __init__(self, texts: ArrowArray, domain: Domain, on_error: str, plans: bool) -> None:
        self._texts = texts
        self._domain = domain
        self._on_error = on_error
        self._predicates = PredicateReader(domain) if plans else None
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
            if sum(len(same.rows) for same in group) >= _WORTH_A_PLAN:
                yield from self._executions(template.text, group)

    def _executions(self, template: str, group: list[_SameShape]) -> Iterator[Execution]:
        """Plans for filters of one template: each serves those that are like the one it was made from."""
        rows = np.concatenate([same.rows for same in group])
        texts = self._texts.take(pa.array(rows))
        shape = np.repeat(np.arange(len(group)), [len(same.rows) for same in group])
        holes: Holes | None = None
        left = np.arange(len(rows))
        plans = failures = 0
        while len(left) >= _WORTH_A_PLAN and plans < _MAX_PLANS and failures < _MAX_FAILURES:
            first = left[0]
            found = self._plan_of(texts[int(first)].as_py(), group[shape[first]].shape)
            if found is None:
                failures += 1
                left = left[1:]
                continue
            if holes is None:
                holes = Holes(texts_in_holes(template, texts))
            alike = np.ones(len(left), bool)
            for likeness in found.likenesses:
                codes = holes.alike(likeness)
                alike &= codes[left] == codes[first]
            served, left = left[alike], left[~alike]
            plans += 1
            if len(served) >= _WORTH_A_PLAN:
                paths = group[shape[first]].template[1]
                renamed = _renamed(paths, group, shape[served])
                part = holes if len(served) == len(rows) else holes.take(served)
                yield Execution(found, rows[served], part, self.builder, renamed)

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

    def _plan_of(self, text: str, shape: str) -> Plan | None:
        try:
            lexed = lex(text)
            return plan(text, shape, lexed, resolve(lexed, self._domain))
        except FilterError:
            return None  # each filter of the shape says for itself what is wrong

    def _tree(self, text: str) -> Expression:
        tree = self._predicates.read(text) if self._predicates is not None else None
        return parse_filter(text, self._domain) if tree is None else tree

    def in_full(self, rows: Rows) -> None:
        for row, text in zip(rows.tolist(), self._texts.take(pa.array(rows, pa.int32())).to_pylist(), strict=True):
            try:
                self.builder.add(row, normalise(self._tree(text)))
            except FilterError as error:
                if self._on_error == "raise":
                    raise
                self.rejects.append((row, error))


def _renamed(planned: tuple[Path, ...], group: list[_SameShape], shape: Numbers) -> dict[Path, Renamed]:
    """What stands for each of a plan's attributes in filters of these shapes."""
    shapes, which = np.unique(shape, return_inverse=True)
    renamed = {}
    for number, path in enumerate(planned):
        paths: dict[Path, int] = {}
        actual = [paths.setdefault(group[one].template[1][number], len(paths)) for one in shapes]
        renamed[path] = Renamed(list(paths), np.array(actual)[which])
    return renamed


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
