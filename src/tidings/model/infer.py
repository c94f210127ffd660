"""A domain from what there is: an Arrow or Spark schema, a data frame, or a sample of events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.errors import DomainError, EventError
from tidings.model import types
from tidings.model.arrow import arrow_table, from_arrow, is_lazy_polars, is_pandas
from tidings.model.domain import Attribute, Domain, path_text
from tidings.model.event import record_of
from tidings.model.event_values import shown
from tidings.model.types import DataType, Path, array, mapping, parse_type, struct


def infer_domain(data: Any, name: str = "events") -> Domain:
    """The domain of some data: every attribute with the type that holds all its values.

    `data` is an Arrow schema, table or record batch, a Spark schema or DataFrame, a pandas or Polars
    frame, or a list of events (dicts or CloudEvents). Of a list, integers are `bigint`, other numbers
    and mixtures `double`, texts `string` (never a guessed date), objects structs and lists arrays; an attribute that
    is always NULL, and the element of lists that are all empty, is `string`, as in Spark. Kinds that
    cannot be joined raise `DomainError`.
    """
    if isinstance(data, pa.Schema):
        return _from_schema(data, name)
    if (table := arrow_table(data)) is not None:
        return _from_schema(table.schema, name)
    if is_pandas(data):
        return _from_pandas(data, name)
    if isinstance(data, Mapping | str | bytes):
        raise _no_source(data, name)
    if isinstance(data, list | tuple):
        return _from_events(data, name)
    if is_lazy_polars(data):
        return infer_domain(data.collect_schema().to_frame(), name)
    spark: Any = data if hasattr(data, "jsonValue") else getattr(data, "schema", None)
    if hasattr(spark, "jsonValue"):
        return _from_spark(spark.jsonValue(), name)
    if not isinstance(data, Iterable):
        raise _no_source(data, name)
    return _from_events(data, name)


def _no_source(data: object, name: str) -> DomainError:
    return DomainError(
        f"domain '{name}': a domain is inferred from a list of events, a schema or a data frame, "
        f"not from {type(data).__name__}"
    )


def _from_schema(schema: pa.Schema, name: str) -> Domain:
    return _domain(name, [(field.name, _attempt(from_arrow, field.type, name, (field.name,))) for field in schema])


def _from_pandas(frame: Any, name: str) -> Domain:
    typed = []
    for position, column in enumerate(frame.columns):
        path = (str(column),)
        try:
            found = pa.array(frame.iloc[:, position], from_pandas=True).type
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DomainError(
                f"domain '{name}': attribute '{path_text(path)}' has values of different kinds; "
                f"make them one kind, or declare the attribute ({error})"
            ) from None
        typed.append((path[0], _attempt(from_arrow, found, name, path)))
    return _domain(name, typed)


def _attempt(convert: Any, given: Any, name: str, path: Path) -> DataType:
    try:
        converted: DataType = convert(given)
    except DomainError as error:
        raise DomainError(f"domain '{name}': attribute '{path_text(path)}': {error}") from None
    return converted


def _domain(name: str, typed: Iterable[tuple[str, DataType]]) -> Domain:
    return Domain(name, [Attribute(path_text((column,)), type_) for column, type_ in typed])


def _from_spark(schema: Any, name: str) -> Domain:
    if not isinstance(schema, Mapping) or schema.get("type") != "struct":
        raise DomainError(f"domain '{name}': a Spark schema is a StructType, not {shown(schema)}")
    fields = [
        (field["name"], _attempt(_spark_type, field["type"], name, (field["name"],))) for field in schema["fields"]
    ]
    return _domain(name, fields)


def _spark_type(form: Any) -> DataType:
    """A type from the JSON that Spark keeps of it, which has every name intact."""
    if isinstance(form, str):
        found = parse_type(form)
        return types.STRING if found == types.VOID else found
    match form.get("type"):
        case "array":
            return array(_spark_type(form["elementType"]))
        case "map":
            return mapping(_spark_type(form["keyType"]), _spark_type(form["valueType"]))
        case "struct" if form["fields"]:
            return struct(*((field["name"], _spark_type(field["type"])) for field in form["fields"]))
    raise DomainError(f"type: Spark's {shown(form)} is no type of an attribute; leave the column out, or cast it")


def _from_events(events: Iterable[Any], name: str) -> Domain:
    seen = _Seen()
    for row, event in enumerate(events):
        try:
            seen.add(record_of(event), (), name)
        except EventError as error:
            raise DomainError(f"domain '{name}': row {row} of the sample: {error.reason}") from None
    typed = [(column, field.type_of((column,), name)) for column, field in seen.fields.items()]
    return _domain(name, [(column, type_) for column, type_ in typed if type_ is not None])


class _Seen:
    """The kinds of values seen in one place of a sample."""

    def __init__(self) -> None:
        self.kind: str | None = None  # a type's name, "struct" or "array"; None for NULL alone
        self.fields: dict[str, _Seen] = {}
        self.element: _Seen | None = None

    def add(self, value: object, path: Path, name: str) -> None:
        if value is None:
            return
        kind = _kind(value, path, name)
        if self.kind is None or {self.kind, kind} == {"bigint", "double"}:
            self.kind = kind if self.kind is None else "double"
        elif self.kind != kind:
            raise DomainError(
                f"domain '{name}': attribute '{path_text(path)}' is {self.kind} in one event and {kind} in another; "
                "make them one kind, or leave it out of the sample"
            )
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise DomainError(
                        f"domain '{name}': the key {shown(key)} is no text; attributes have texts as names"
                    )
                self.fields.setdefault(key, _Seen()).add(item, (*path, key), name)
        elif isinstance(value, list | tuple | np.ndarray):
            self.element = self.element or _Seen()
            for item in value:
                self.element.add(item, path, name)

    def type_of(self, path: Path, name: str) -> DataType | None:
        """None of objects that never had a field: there is nothing to filter or carry."""
        if self.kind is None:
            return types.STRING
        if self.kind == "array":
            assert self.element is not None
            element = self.element.type_of(path, name)
            return None if element is None else array(element)
        if self.kind != "struct":
            return parse_type(self.kind)
        fields = [(key, field.type_of((*path, key), name)) for key, field in self.fields.items()]
        known = [(key, type_) for key, type_ in fields if type_ is not None]
        return struct(*known) if known else None


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "boolean"),
    ((int, np.integer), "bigint"),
    ((float, np.floating, Decimal), "double"),
    (str, "string"),
    (dt.datetime, "timestamp"),
    (dt.date, "date"),
    ((bytes, bytearray), "binary"),
    (Mapping, "struct"),
    ((list, tuple, np.ndarray), "array"),
)


def _kind(value: object, path: Path, name: str) -> str:
    for python, kind in _KINDS:
        if isinstance(value, python):
            if kind == "timestamp" and isinstance(value, dt.datetime) and value.utcoffset() is None:
                return "timestamp_ntz"
            if kind == "bigint" and isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise DomainError(
                    f"domain '{name}': attribute '{path_text(path)}' has {shown(value)}, which is beyond 64 bits; "
                    "declare it, as decimal(38,0) or double"
                )
            return kind
    raise DomainError(
        f"domain '{name}': attribute '{path_text(path)}' has {shown(value)}, a {type(value).__name__}, "
        "which is no value of an event; convert it, or leave it out of the sample"
    )
