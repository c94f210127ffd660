"""DuckDB as one would write it first: one table of subscriptions, one join.

Columns for the constants of each condition, NULL where a subscription does not ask it:
`(s.c0 IS NULL OR e.c0 = s.c0) AND …`, which is a nested loop. For boxes it is the same as the other
formulation, which is therefore the one measured.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.peers.duckdb_classes import SQL
from benchmarks.peers.prepared import Prepared


class Peer:
    name = "duckdb one join"
    workloads = ("alerts", "strings", "mixed")
    events_max = 10_000

    def build(self, subscriptions: Prepared) -> None:
        self._connection = duckdb.connect(config={"threads": 1})
        columns: dict[str, Any] = {}
        asked: dict[str, str] = {}
        for class_ in subscriptions.classes:
            for conjunct in class_.conjuncts:
                name = "_".join((conjunct.kind, *conjunct.names))
                constants = [class_.constants[number] for number in conjunct.constants] or [True]
                for place, values in enumerate(constants):
                    column = columns.setdefault(f"{name}_{place}", np.full(subscriptions.count, None, object))
                    assert (column[class_.subscriptions] == None).all(), "asked twice"  # noqa: E711
                    column[class_.subscriptions] = values
                attributes = {letter: f"e.{attribute}" for letter, attribute in zip("ab", conjunct.names, strict=False)}
                places = {letter: f"s.{name}_{place}" for place, letter in enumerate("pqr")}
                asked[name] = f"(s.{name}_0 IS NULL OR {SQL[conjunct.kind].format(**attributes, **places)})"
        arrays = {name: pa.array(values) for name, values in columns.items()}
        self._connection.register("columns", pa.table({"subscription": np.arange(subscriptions.count)} | arrays))
        self._connection.execute("CREATE TABLE subscriptions AS SELECT * FROM columns")
        condition = " AND ".join(asked[name] for name in sorted(asked, key=_rarest_first))
        self._statement = f"SELECT e.event, s.subscription FROM events e JOIN subscriptions s ON {condition}"

    def match(self, events: Any) -> tuple[Any, Any]:
        numbered = events.append_column("event", pa.array(np.arange(len(events))))
        self._connection.register("columns", numbered)
        self._connection.execute("CREATE OR REPLACE TABLE events AS SELECT * FROM columns")
        found = self._connection.execute(self._statement).fetchnumpy()
        return found["event"], found["subscription"]


def _rarest_first(name: str) -> tuple[bool, str]:
    """Equalities fail most often, so they are asked first."""
    return not name.startswith("equal"), name
