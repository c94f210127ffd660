"""Events as the log keeps them: the JSON text of each, as it was published, and its identity."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidings.errors import EventError
from tidings.model.arrow import arrow_table, is_pandas, pandas_columns
from tidings.model.event import EventBatch
from tidings.model.event_values import kind_of

Keys = npt.NDArray[np.uint64]
Name: TypeAlias = tuple[str, str]  # source and id of a CloudEvent

# JSON's numbers have no Python type that the encoder writes digit by digit, so a decimal passes it as a text
# that nobody else can have written, and loses its quotes afterwards.
_MARK = f"decimal {secrets.token_hex(16)} "
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


def texts_of(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each event as one line of JSON, numbers exact; `EventError` with the row where JSON has no such value."""
    texts = []
    for row, event in enumerate(events):
        if not isinstance(event, Mapping):
            raise EventError(f"an event is an object, and this is {kind_of(event)}", row=row)
        try:
            text = _ENCODER.encode(event if type(event) is dict else dict(event))
            text.encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise EventError(f"this event cannot be written as JSON: {error}", row=row) from None
        texts.append(_MARKED.sub(r"\1", text) if _MARK in text else text)
    return texts


def records_of(batch: EventBatch) -> list[Mapping[str, Any]]:
    """The events of a batch as they were given, those that do not fit left out."""
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
    """The event of a text that `texts_of` wrote."""
    event: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return event


def name_of(event: Mapping[str, Any]) -> Name | None:
    """Source and id of a CloudEvent; None of any other event, which has none."""
    if "specversion" not in event:
        return None
    source, id_ = event.get("source"), event.get("id")
    return (source, id_) if isinstance(source, str) and isinstance(id_, str) else None


def keys_of(domain: str, names: Sequence[Name | None]) -> Keys | None:
    """A 64-bit hash of each event's domain and name, 0 where it has no name; None where none has."""
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
        json.loads(text, parse_float=lambda number: f"{_MARK}{Decimal(number).normalize()}"), sort_keys=True
    )


def _plain(value: object) -> Any:
    """What the encoder does not know, in the form that `tidings.model.event_values` reads back."""
    match value:
        case Decimal():
            if not value.is_finite():
                raise ValueError(f"{value} is no JSON number; leave it out, or send null")
            return f"{_MARK}{value}"
        case dt.datetime() | dt.date():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode("ascii")
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.tolist()
        case Mapping():
            return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
