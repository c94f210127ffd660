"""Polars: `join_where` of the events with each class of subscriptions.

Equalities make it a hash join with the ranges as a filter after it, boxes an inequality join on
two of the conditions with the others as a filter.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.peers import ALL_WORKLOADS
from benchmarks.peers.prepared import Conjunct, Prepared

# One thread: what counts is CPU seconds. Polars reads this when it is first imported.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import polars as pl


class Peer:
    name = "polars"
    workloads = ALL_WORKLOADS
    events_max = 10_000

    def build(self, subscriptions: Prepared) -> None:
        self._classes = []
        for class_ in subscriptions.classes:
            columns = {f"p{i}": pl.Series(values.tolist()) for i, values in enumerate(class_.constants)}
            frame = pl.DataFrame({"subscription": class_.subscriptions} | columns)
            self._classes.append((frame.lazy(), [_predicate(conjunct) for conjunct in class_.conjuncts]))

    def match(self, events: Any) -> tuple[Any, Any]:
        table = pl.from_arrow(events)
        assert isinstance(table, pl.DataFrame)
        numbered = table.with_row_index("event").lazy()
        joins = [
            numbered.join_where(subscriptions, *predicates).select("event", "subscription")
            for subscriptions, predicates in self._classes
        ]
        found = [join.collect() for join in joins]
        return (
            np.concatenate([part["event"].to_numpy() for part in found]),
            np.concatenate([part["subscription"].to_numpy() for part in found]),
        )


def _predicate(conjunct: Conjunct) -> pl.Expr:
    a, b = (pl.col(name) for name in (conjunct.names * 2)[:2])
    constants = [pl.col(f"p{i}") for i in conjunct.constants]
    match conjunct.kind:
        case "equal":
            return a == constants[0]
        case "at_least":
            return a >= constants[0]
        case "below":
            return a < constants[0]
        case "either":
            return (a == constants[0]) | (b == constants[1])
        case "differs":
            return a != constants[0]
        case "among":
            return (a == constants[0]) | (a == constants[1]) | (a == constants[2])
        case "prefix":
            return a.str.starts_with(constants[0])
        case "contains":
            return a.str.contains(constants[0], literal=True)
        case "null":
            return a.is_null()
        case "exceeds":
            return a > b * constants[0]
    raise AssertionError(conjunct.kind)
