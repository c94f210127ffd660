"""DuckDB as one would write it first: one table of subscriptions, one join.

A column for each bound, NULL where a subscription asks nothing: `(s.c0 IS NULL OR e.c0 = s.c0) AND …`,
which is a nested loop. Only for filters that are equalities and ranges; for boxes it is the same as
the other formulation, which is therefore the one measured.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.peers.prepared import Prepared


class Peer:
    name = "duckdb one join"
    workloads = ("alerts", "strings")
    events_max = 10_000

    def build(self, subscriptions: Prepared) -> None:
        self._connection = duckdb.connect(config={"threads": 1})
        columns: dict[str, Any] = {name: np.full(subscriptions.count, None, object) for name in subscriptions.texts}
        for name in subscriptions.numbers:
            columns |= {f"{name}_{end}": np.full(subscriptions.count, np.nan) for end in ("at_least", "below")}
        for class_ in subscriptions.classes:
            for conjunct in class_.conjuncts:
                column = conjunct.names[0] + ("" if conjunct.kind == "equal" else f"_{conjunct.kind}")
                columns[column][class_.subscriptions] = class_.constants[conjunct.constants[0]]
        arrays = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
        self._connection.register("columns", pa.table({"subscription": np.arange(subscriptions.count)} | arrays))
        self._connection.execute("CREATE TABLE subscriptions AS SELECT * FROM columns")
        asked = [f"(s.{name} IS NULL OR e.{name} = s.{name})" for name in subscriptions.texts] + [
            f"(s.{name}_at_least IS NULL OR (e.{name} >= s.{name}_at_least AND e.{name} < s.{name}_below))"
            for name in subscriptions.numbers
        ]
        self._statement = f"SELECT e.event, s.subscription FROM events e JOIN subscriptions s ON {' AND '.join(asked)}"

    def match(self, events: Any) -> tuple[Any, Any]:
        numbered = events.append_column("event", pa.array(np.arange(len(events))))
        self._connection.register("columns", numbered)
        self._connection.execute("CREATE OR REPLACE TABLE events AS SELECT * FROM columns")
        found = self._connection.execute(self._statement).fetchnumpy()
        return found["event"], found["subscription"]
