"""Events that the tests of the log append, and how they are read back."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from tidings.model.domain import Attribute, Domain
from tidings.store.log.log_reader import LogReader

STOCKS = Domain(
    "stocks",
    [
        Attribute(name, type_)
        for name, type_ in {
            "symbol": "string", "price": "double", "fee": "decimal(10,2)", "at": "timestamp", "day": "date",
            "volume": "bigint", "venue.city": "string", "tags": "array<string>", "raw": "binary",
        }.items()
    ],
)  # fmt: skip


def stock(k: int) -> dict[str, Any]:
    return {
        "symbol": f"S{k}", "price": k + 0.1, "fee": Decimal("8.40"), "at": f"2024-05-01T12:00:{k % 60:02d}+02:00",
        "day": "2024-05-01", "volume": 2**53 + 1 + k, "venue": {"city": "Zürich\n" if k % 3 else None},
        "tags": ["a", None], "raw": "AAEC", "unknown": {"to": ["the", "domain"]},
    }  # fmt: skip


def cloud(source: str, id_: str, data: Any = None) -> dict[str, Any]:
    return {"specversion": "1.0", "source": source, "id": id_, "type": "test", "data": data or {}}


def events_of(log: LogReader, start: int | None = None, end: int | None = None, domain: str | None = None) -> list[Any]:
    rows = [row for batch in log.read(start, end, domain=domain) for row in batch.to_pylist()]
    return [(row["position"], row["domain"], json.loads(row["event"])) for row in rows]
