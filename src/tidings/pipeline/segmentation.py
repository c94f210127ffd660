"""BlueDove's view of a table of subscriptions: which attributes are the dimensions, and where they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.errors import DomainError, did_you_mean
from tidings.model.domain import Domain, parse_path
from tidings.model.filter.columnar import FilterTable
from tidings.model.filter.tree import Path
from tidings.model.types import DataType
from tidings.rendezvous.bluedove import Edges, Numbers, View, edges_at_quantiles, loads, place, route
from tidings.rendezvous.spans import bounds_in, event_segments, has_places, spans_of

DIMENSIONS_MAX = 4
_LARGE_SHARE = 0.75  # of the subscriptions that an event meets, beyond which a dimension is not worth its copies


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Dimensions with their view."""

    paths: tuple[Path, ...]
    types: tuple[DataType, ...]
    view: View

    @property
    def sets(self) -> int:
        """How many sets of subscriptions there are."""
        return self.view.catch_all + 1

    def place(self, filters: FilterTable) -> tuple[Numbers, Numbers]:
        """(filter, set) for every copy."""
        spans = [spans_of(filters, path, edges) for path, edges in zip(self.paths, self.view.edges, strict=True)]
        return place(spans, self.view)

    def route(self, columns: Sequence[Any]) -> Numbers:
        """The candidate of each event, from the Arrow columns of the dimensions."""
        held = zip(columns, self.types, self.view.edges, strict=True)
        return route([event_segments(column, type_, edges) for column, type_, edges in held], self.view)

    def with_loads(self, sizes: npt.NDArray[np.int64]) -> Segmentation:
        """With the costs that follow from how many subscriptions are in each set."""
        held = loads(np.repeat(np.arange(self.sets), sizes), self.view)
        return Segmentation(self.paths, self.types, View(self.view.edges, held))

    def met(self, subscriptions: int) -> float:
        """The share of the subscriptions that an event meets, if it is as likely in one segment as in another."""
        rng = np.random.default_rng(0)
        drawn = [rng.choice(cost, 1_000) for cost in self.view.costs]
        return float(np.min(drawn, axis=0).mean() / max(1, subscriptions))

    def to_dict(self) -> dict[str, Any]:
        return {
            "paths": [list(path) for path in self.paths],
            "edges": [[_written(edge) for edge in edges] for edges in self.view.edges],
            "costs": [costs.tolist() for costs in self.view.costs],
        }

    @staticmethod
    def from_dict(form: dict[str, Any], domain: Domain) -> Segmentation:
        paths = tuple(tuple(path) for path in form["paths"])
        types = tuple(domain.leaves[path] for path in paths)
        edges = tuple(_read(part, type_) for part, type_ in zip(form["edges"], types, strict=True))
        return Segmentation(paths, types, View(edges, tuple(np.array(costs, np.float64) for costs in form["costs"])))


def segmented(filters: FilterTable, segments: int, dimensions: Sequence[str] | None = None) -> Segmentation | None:
    """The dimensions in which an event meets the fewest subscriptions, cut at the quantiles of the filters' bounds.

    None where the filters constrain no attribute that can be a dimension.
    """
    wished = None if dimensions is None else _wished(filters.domain, dimensions)
    alone: dict[Path, Segmentation] = {}
    for path in filters.intervals if wished is None else wished:
        if path in filters.intervals and has_places(filters.domain.leaves[path]):
            edges = edges_at_quantiles(bounds_in(filters, path), segments)
            alone[path] = _with_loads(filters, (path,), (edges,))
    if not alone:
        return None
    chosen = sorted(alone, key=lambda path: alone[path].met(filters.count))
    if wished is None:
        useful = [path for path in chosen if alone[path].met(filters.count) < _LARGE_SHARE]
        chosen = (useful or chosen[:1])[:DIMENSIONS_MAX]
    return _with_loads(filters, tuple(chosen), tuple(alone[path].view.edges[0] for path in chosen))


def _with_loads(filters: FilterTable, paths: tuple[Path, ...], edges: tuple[Edges, ...]) -> Segmentation:
    types = tuple(filters.domain.leaves[path] for path in paths)
    made = Segmentation(paths, types, View(edges, tuple(np.zeros(len(part) + 1) for part in edges)))
    return made.with_loads(np.bincount(made.place(filters)[1], minlength=made.sets))


def _wished(domain: Domain, names: Sequence[str]) -> list[Path]:
    paths = []
    for name in names:
        found = domain.find(parse_path(name))
        if found is None or not has_places(found[1]):
            raise DomainError(
                f"'{name}' cannot be a dimension of the subscriptions; {did_you_mean(name, domain.names)}"
            )
        paths.append(found[0])
    return paths


def _written(edge: Any) -> int | str:
    return edge.hex() if isinstance(edge, bytes) else int(edge)


def _read(edges: list[Any], type_: DataType) -> Edges:
    if type_.name != "string":
        return np.array(edges, np.int64)
    read = np.empty(len(edges), object)
    read[:] = [bytes.fromhex(edge) for edge in edges]
    return read
