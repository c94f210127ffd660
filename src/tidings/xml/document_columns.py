"""XML texts as columns of nodes, once a batch, for any number of indexes."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.errors import EventError
from tidings.kernels.decorator import kernel
from tidings.xml.document import Nodes, parse_bytes
from tidings.xml.path_meaning import Document
from tidings.xml.path_parser import number_of

Numbers = npt.NDArray[np.int32]

_MAX_DIGITS = 15  # up to which digits are a whole number that is a double
_POWERS = 10.0 ** np.arange(_MAX_DIGITS + 1)  # exact
_HARD = 1  # a number that takes more than one rounding: read by Python


@dataclass(frozen=True)
class Documents:
    """The nodes of some documents: those of document i are from `roots[i]` to `roots[i + 1]`, none if it is refused."""

    names: tuple[str, ...]
    node_names: Numbers
    ends: Numbers
    starts: Numbers
    stops: Numbers
    text: npt.NDArray[np.uint8]
    roots: Numbers
    refused: dict[int, EventError]  # by document; a NULL is none

    def __len__(self) -> int:
        return len(self.roots) - 1

    def document(self, number: int) -> Document:
        """One of them, to be interpreted."""
        first, last = self.roots[number], self.roots[number + 1]
        ends = (self.ends[first:last] - first).tolist()
        columns = (self.starts, self.stops)
        start = int(self.starts[first])  # of the root element's text, which is the document's first
        end = int(max(self.stops[first:last].max(), start))
        starts, stops = ((column[first:last] - start).tolist() for column in columns)
        text = self.text[start:end].tobytes()
        return Document(self.names, self.node_names[first:last].tolist(), ends, starts, stops, text)

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64]:
        """XPath's number() of each node."""
        numbers, hard = np.empty(len(self.starts), np.float64), np.zeros(len(self.starts), np.uint8)
        _read_numbers(self.text, self.starts, self.stops, numbers, hard)
        for node in np.flatnonzero(hard).tolist():
            numbers[node] = number_of(self.text[self.starts[node] : self.stops[node]].tobytes().decode())
        return numbers

    @cached_property
    def largest(self) -> int:
        """The most nodes of a document."""
        return int(np.diff(self.roots).max(initial=0))


def read_documents(documents: Iterable[bytes | None], *, text: bool) -> Documents:
    """The nodes of documents, in UTF-8 where they are `text`, else in the encoding that each declares."""
    nodes = Nodes()
    roots = [0]
    refused: dict[int, EventError] = {}
    for number, document in enumerate(documents):
        if document is not None:
            try:
                nodes.add(parse_bytes(document, text))
            except EventError as error:
                refused[number] = error
        roots.append(len(nodes.names))
    names, ends, starts, stops = (
        np.array(column, np.int32) for column in (nodes.names, nodes.ends, nodes.starts, nodes.stops)
    )
    data = np.frombuffer(bytearray().join(nodes.text), np.uint8)
    return Documents(tuple(nodes.numbers), names, ends, starts, stops, data, np.array(roots, np.int32), refused)


@kernel
def _read_numbers(text: Any, starts: Any, stops: Any, numbers: Any, hard: Any) -> None:
    for node in range(len(starts)):
        numbers[node], hard[node] = _number(text, starts[node], stops[node])


@kernel
def _number(text: Any, at: Any, end: Any) -> Any:
    """The number that a text is, NaN if it is none; and whether it has too many digits to be read here."""
    while at < end and _is_space(text[at]):
        at += 1
    while at < end and _is_space(text[end - 1]):
        end -= 1
    negative = at < end and text[at] == 45
    at += negative
    if at == end:
        return math.nan, 0
    whole, digits, after, point = 0, 0, 0, False
    for i in range(at, end):
        byte = text[i]
        if byte == 46 and not point:
            point = True
        elif 48 <= byte <= 57:
            digits += 1
            after += point
            if digits > _MAX_DIGITS:
                return math.nan, _HARD
            whole = whole * 10 + (byte - 48)
        else:
            return math.nan, 0
    if digits == 0:
        return math.nan, 0
    value = np.float64(whole) / _POWERS[after]  # one rounding of two exact numbers
    return (-value if negative else value), 0


@kernel(inline="always")
def _is_space(byte: Any) -> Any:
    return byte == 32 or byte == 10 or byte == 9 or byte == 13
