"""Events as the log stores them: the JSON text of each, as it was published, and its identity."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidings.model.arrow import arrow_table, is_pandas, pandas_columns
from tidings.model.event import EventBatch

Keys = npt.NDArray[np.uint64]
Name: TypeAlias = tuple[str, str]  # source and id of a CloudEvent

# Before two events are compared, a decimal is written with this prefix, which no event has.
_NUMBER = f"decimal {secrets.token_hex(16)} "


def records_of(batch: EventBatch) -> list[Mapping[str, Any]]:
    """Returns the events of a batch as they were given, without those that do not fit the domain."""
    source = batch.source
    if not isinstance(source, list):
        if (table := arrow_table(source)) is not None:
            columns = {name: table.column(i).to_pylist() for i, name in enumerate(table.column_names)}
        else:
            assert is_pandas(source)
            columns = {
                name: column if isinstance(column, list) else column.to_pylist()
                for name, column in pandas_columns(source)
            }
        source = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return source if batch.count == len(source) else [source[row] for row in batch.rows]


def parse(text: str) -> dict[str, Any]:
    """Returns the event of a text that `texts_of` wrote."""
    event: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return event


def name_of(event: Mapping[str, Any]) -> Name | None:
    """Returns source and id of a CloudEvent; None for any other event."""
    if "specversion" not in event:
        return None
    source, id_ = event.get("source"), event.get("id")
    return (source, id_) if isinstance(source, str) and isinstance(id_, str) else None


def keys_of(domain: str, names: Sequence[Name | None]) -> Keys | None:
    """Returns a 64-bit hash of each event's domain and name, 0 if it has no name; None if no event has one."""
    if not any(names):
        return None
    keys = []
    for name in names:
        key = 0
        if name is not None:
            # The lengths keep ("a", "bc") apart from ("ab", "c").
            written = f"{len(domain)} {len(name[0])} {domain}{name[0]}{name[1]}".encode()
            key = int.from_bytes(hashlib.blake2b(written, digest_size=8).digest(), "little") or 1
        keys.append(key)
    return np.array(keys, np.uint64)


def same_event(one: str, other: str) -> bool:
    """Whether two texts are the same event, whatever the order of their keys."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(text: str) -> str:
    return json.dumps(
        json.loads(text, parse_float=lambda number: f"{_NUMBER}{Decimal(number).normalize()}"), sort_keys=True
    )
