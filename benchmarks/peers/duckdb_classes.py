"""DuckDB: a table and a join for each class of subscriptions, many to a statement.

Equalities make it a hash join with the ranges as filters on its candidates; boxes make it an
inequality join. Of the formulations tried on alerts with 200,000 subscriptions, events a second
in batches of 10,000: one join on a table with a nullable column for each bound 40; one join on
the rarest equality of each subscription, attribute and value unpivoted, the rest as nullable
bounds 1,100; a statement for each class 3,600; this 4,100. In small batches planning dominates.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.peers import ALL_WORKLOADS
from benchmarks.peers.prepared import Class, Conjunct, Prepared

CLASSES_A_STATEMENT = 100

# By kind of conjunct: a, b are the event's attributes; p, q, r the subscription's constants.
SQL = {
    "equal": "{a} = {p}",
    "at_least": "{a} >= {p}",
    "below": "{a} < {p}",
    "either": "({a} = {p} OR {b} = {q})",
    "differs": "{a} <> {p}",
    "among": "{a} IN ({p}, {q}, {r})",
    "prefix": "starts_with({a}, {p})",
    "contains": "contains({a}, {p})",
    "null": "{a} IS NULL",
    "exceeds": "{a} > {b} * {p}",
}


class Peer:
    name = "duckdb"
    workloads = ALL_WORKLOADS
    events_max = 10_000

    def build(self, subscriptions: Prepared) -> None:
        # One thread: what counts is CPU seconds, and more threads only add to them.
        self._connection = duckdb.connect(config={"threads": 1})
        joins = []
        for number, class_ in enumerate(subscriptions.classes):
            self._connection.register("columns", _table(class_))
            self._connection.execute(f"CREATE TABLE class{number} AS SELECT * FROM columns")
            condition = " AND ".join(map(_sql, class_.conjuncts))
            joins.append(f"SELECT e.event, s.subscription FROM events e JOIN class{number} s ON {condition}")
        self._statements = [
            " UNION ALL ".join(joins[first : first + CLASSES_A_STATEMENT])
            for first in range(0, len(joins), CLASSES_A_STATEMENT)
        ]

    def match(self, events: Any) -> tuple[Any, Any]:
        numbered = events.append_column("event", pa.array(np.arange(len(events))))
        self._connection.register("columns", numbered)
        self._connection.execute("CREATE OR REPLACE TABLE events AS SELECT * FROM columns")
        found = [self._connection.execute(statement).fetchnumpy() for statement in self._statements]
        return (
            np.concatenate([part["event"] for part in found]),
            np.concatenate([part["subscription"] for part in found]),
        )


def _table(class_: Class) -> pa.Table:
    columns = {f"p{i}": pa.array(values) for i, values in enumerate(class_.constants)}
    return pa.table({"subscription": pa.array(class_.subscriptions)} | columns)


def _sql(conjunct: Conjunct) -> str:
    attributes = {letter: f"e.{name}" for letter, name in zip("ab", conjunct.names, strict=False)}
    constants = {letter: f"s.p{i}" for letter, i in zip("pqr", conjunct.constants, strict=False)}
    return SQL[conjunct.kind].format(**attributes, **constants)
