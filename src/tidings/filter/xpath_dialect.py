"""`dialect="xpath"`: filters that are one path over a whole document, and events that are documents.

It is short for a domain of one attribute, `document`, and filters `xpath_boolean(document, '…')`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from typing import Literal as Choice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import EventError, FilterError
from tidings.filter.syntax.writer import literal_to_sql
from tidings.model.arrow import ArrowArray, one_array
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, Reject
from tidings.model.subscription import SubscriptionTable, read_subscriptions
from tidings.model.types import STRING
from tidings.xml.document import Nodes, document_text, parse_bytes
from tidings.xml.path_parser import with_uris

ATTRIBUTE = "document"
DOMAIN = Domain("documents", [Attribute(ATTRIBUTE, "string")])

_BEFORE = f"xpath_boolean({ATTRIBUTE}, "


@dataclass(frozen=True)
class PathDialect:
    """What prefixes stand for."""

    namespaces: dict[str, str]

    def subscriptions(self, given: Any) -> SubscriptionTable:
        """Subscriptions whose filters are paths, as those whose filters are filters; of a list of paths, by number."""
        if isinstance(given, list) and given and all(isinstance(path, str) for path in given):
            given = list(enumerate(given))
        table = read_subscriptions(given)
        distinct = table.filters.dictionary_encode()
        filters = [self._filter(str(path)) for path in distinct.dictionary.to_pylist()]
        return replace(table, filters=pa.array(filters, pa.string()).take(distinct.indices))

    def _filter(self, path: str) -> str:
        return f"{_BEFORE}{literal_to_sql(with_uris(path, self.namespaces), STRING)})"

    def events(self, documents: Any) -> EventBatch:
        """Documents, strings or bytes, as events; what is neither raises EventError.

        One whose bytes cannot be read as a text is NULL, and listed in the batch's rejects.
        """
        column, rejects = _texts(documents)
        return EventBatch(DOMAIN, len(column), {(ATTRIBUTE,): column}, np.arange(len(column)), rejects, documents)


def path_dialect(dialect: str, namespaces: Mapping[str, str] | None) -> PathDialect | None:
    if dialect == "xpath":
        return PathDialect(dict(namespaces or {}))
    if dialect != "sql":
        raise ValueError(f"dialect is 'sql' or 'xpath', not {dialect!r}")
    if namespaces is not None:
        raise ValueError(
            "namespaces are for dialect='xpath'; a filter has its own: xpath_boolean(…, '/p:a', map('p', 'uri'))"
        )
    return None


@contextmanager
def columns_of_paths() -> Iterator[None]:
    """Errors in filters that were made of paths, with their columns in the paths."""
    try:
        yield
    except FilterError as error:
        column = None if error.column is None else max(1, error.column - len(_BEFORE) - 1)
        raise FilterError(error.reason, column=column, hint=error.hint) from None


def check_documents(
    batch: EventBatch, rows: npt.NDArray[np.int64], on_error: Choice["raise", "reject"]
) -> list[Reject]:
    """What is wrong with those of these documents that cannot be read."""
    unreadable = {reject.row: reject.reason for reject in batch.rejects}
    rejects = []
    texts = batch.columns[ATTRIBUTE,].take(rows).cast(pa.binary()).to_pylist()
    for row, text in zip(rows.tolist(), texts, strict=True):
        try:
            if text is None:
                raise EventError(unreadable.get(row, "there is no document"))
            Nodes().add(parse_bytes(text, True))
        except EventError as error:
            if on_error == "raise":
                raise EventError(error.reason, row=row) from None
            rejects.append(Reject(row, None, error.reason))
    return rejects


def _texts(documents: Any) -> tuple[ArrowArray, list[Reject]]:
    """A column of texts in UTF-8, whatever encoding documents of bytes are in."""
    if isinstance(documents, str | bytes):
        raise EventError("documents come as a list or a column of them; put one into a list")
    if hasattr(documents, "to_arrow"):  # a series of Polars
        documents = documents.to_arrow()
    if isinstance(documents, pa.Array | pa.ChunkedArray):
        column = one_array(documents)
        if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
            return (column if column.type == pa.string() else column.cast(pa.string())), []
        documents = column.to_pylist()
    if not isinstance(documents, Iterable):
        raise EventError(f"documents come as a list or a column of strings or bytes, not as {type(documents).__name__}")
    texts: list[bytes | None] = []
    rejects: list[Reject] = []
    for row, document in enumerate(documents):
        try:
            texts.append(_text(document, row))
        except _UnreadableError as error:
            texts.append(None)
            rejects.append(Reject(row, None, str(error)))
    column = pa.array(texts, pa.binary()).cast(pa.string())
    return column, rejects


class _UnreadableError(Exception):
    """Bytes that are no document in any encoding."""


def _text(document: Any, row: int) -> bytes | None:
    if isinstance(document, str):
        try:
            return document.encode()
        except UnicodeEncodeError:
            raise EventError("the document is not valid Unicode", row=row) from None
    if isinstance(document, bytes):
        try:
            return document_text(document).encode()
        except EventError as error:
            raise _UnreadableError(error.reason) from None
    if document is None:
        return None
    raise EventError(f"a document is a string or bytes, not {type(document).__name__}", row=row)
