"""What a packet carries of its document, and which queries that may satisfy: integers, compared in one kernel.

A header has a digest for each distinct path of the document, and a mask: the content of all its names and values. A
query is admitted where some path begins with its tokens in their order and has its content; what a query asks beyond
the tokens that it keeps in order may be anywhere in the document, so that the mask has to have it.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.systems.sonnet.path_digest import (
    CONTENT_BITS,
    HASH_BITS,
    LENGTH_BITS,
    MAX_TOKENS,
    NODE_BITS,
    ORDER_BITS,
    RANK_BITS,
    Digest,
    Ordering,
    Tokens,
    content_of,
    digest_of,
    from_bits,
    is_token,
    to_bits,
    value_token,
)
from tidings.xml.document import TEXT
from tidings.xml.path_meaning import Document

Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_LOW_BITS = ORDER_BITS + LENGTH_BITS
_LOW = (1 << _LOW_BITS) - 1
_LENGTH = (1 << LENGTH_BITS) - 1


class DigestColumns(NamedTuple):
    """Digests as integers: in `orders` the numbers of all prefixes, the shortest in the highest bits."""

    contents: Words
    orders: Words
    lengths: npt.NDArray[np.int64]
    truncated: Mask


def digest_columns(digests: Sequence[int], variant: Ordering) -> DigestColumns:
    """Returns digests of 128 bits in columns; raises ValueError where one is none."""
    contents = np.array([bits >> (NODE_BITS + _LOW_BITS) for bits in digests], np.uint64)
    low = np.array([bits >> NODE_BITS & _LOW for bits in digests], np.uint64)
    lengths = (low & np.uint64(_LENGTH)).astype(np.int64)
    if (lengths > MAX_TOKENS).any() or (contents >> np.uint64(CONTENT_BITS)).any():
        raise ValueError("these are not the bits of a digest")
    orders = low >> np.uint64(LENGTH_BITS)
    if variant == "ranks":
        return DigestColumns(contents, orders >> np.uint64(1), lengths, (orders & np.uint64(1)).astype(np.bool_))
    return DigestColumns(contents, orders, lengths, np.array([bits >> NODE_BITS - 1 & 1 for bits in digests], np.bool_))


def _prefix_masks(variant: Ordering) -> Words:
    """Of the orders' bits, by length, those that the prefixes up to it take."""
    widths = (0, *RANK_BITS) if variant == "ranks" else (HASH_BITS,) * MAX_TOKENS
    whole = sum(widths)
    taken = [sum(widths[:length]) for length in range(MAX_TOKENS + 1)]
    return np.array([((1 << bits) - 1) << (whole - bits) for bits in taken], np.uint64)


_PREFIX_MASKS = {"ranks": _prefix_masks("ranks"), "hashes": _prefix_masks("hashes")}


# ---------------------------------------------------------------------- documents


@dataclass(frozen=True, eq=False)
class Header:
    """The digests of a document's paths, as bits in ascending order, and the content of all its names and values."""

    entries: tuple[int, ...]
    mask: int
    variant: Ordering = "ranks"

    @cached_property
    def columns(self) -> DigestColumns:
        """Those of the entries, by order: so those that begin alike are together, whatever the length."""
        contents, orders, lengths, truncated = digest_columns(self.entries, self.variant)
        order = np.argsort(orders)
        return DigestColumns(contents[order], orders[order], lengths[order], truncated[order])

    @cached_property
    def digests(self) -> tuple[Digest, ...]:
        return tuple(from_bits(bits, self.variant) for bits in self.entries)


def document_paths(document: Document) -> tuple[frozenset[Tokens], frozenset[str]]:
    """The paths of a document from its root down, with the value at their end, and all its names and values.

    A path ends at every attribute and element: a query may ask for the text of an element that has others in it.
    """
    paths: set[Tokens] = set()
    tokens: set[str] = set()
    above: list[tuple[int, Tokens]] = []
    for node, (name, end, value) in enumerate(document.nodes()):
        if is_token(value):
            tokens.add(value_token(value.decode()))
        if name == TEXT:
            continue
        tokens.add(name)
        while above and node >= above[-1][0]:
            above.pop()
        path = (*above[-1][1], name) if above else (name,)
        paths.add((*path, value_token(value.decode())))
        above.append((end, path))
    return frozenset(paths), frozenset(tokens)


def header_of(document: Document, variant: Ordering = "ranks") -> Header:
    """Returns the header of a document."""
    paths, tokens = document_paths(document)
    entries = {to_bits(replace(digest_of(path, variant), truncated=False)) for path in paths}
    return Header(tuple(sorted(entries)), content_of(tokens), variant)


# ---------------------------------------------------------------------- admitting


def admits(header: Header, query: Digest) -> bool:
    """Whether a document with this header may satisfy a query: never wrongly no. What the kernel does, said plainly."""
    anywhere = header.mask if query.truncated else 0  # a value that is kept in order need not be in the mask
    return any(query.starts(entry) and not query.content & ~(anywhere | entry.content) for entry in header.digests)


class Runs(NamedTuple):
    """Runs of digests that are alike in length and order."""

    starts: npt.NDArray[np.int64]  # where each begins, and the last one ends
    of_length: npt.NDArray[np.int64]  # the first run of each length, and how many there are


@dataclass(frozen=True, eq=False)
class QueryTable:
    """Queries by their digests, for all of them to be compared with a header at once."""

    digests: DigestColumns  # distinct ones, by length and order
    runs: Runs
    places: npt.NDArray[np.int64]  # of each query's digest
    variant: Ordering

    def admitted(self, header: Header) -> Mask:
        """Of each query, whether a document with this header may satisfy it."""
        assert header.variant == self.variant
        found = np.zeros(len(self.digests.contents), np.bool_)
        entries = header.columns
        scratch = np.empty(len(entries.contents), np.uint64)
        _admit(entries, np.uint64(header.mask), self.digests, self.runs, _PREFIX_MASKS[self.variant], scratch, found)
        return found[self.places]


def query_table(digests: Sequence[int], variant: Ordering) -> QueryTable:
    """Returns queries with these digests, whatever the nodes' own bits, in a table."""
    node_bits = NODE_BITS if variant == "ranks" else NODE_BITS - 1
    distinct, places = np.unique(np.array([bits >> node_bits for bits in digests], object), return_inverse=True)
    columns = digest_columns([int(bits) << node_bits for bits in distinct], variant)
    order = np.lexsort((columns.orders, columns.lengths))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    contents, orders, lengths, truncated = columns
    sorted_ = DigestColumns(contents[order], orders[order], lengths[order], truncated[order])
    same = (np.diff(sorted_.orders) == 0) & (np.diff(sorted_.lengths) == 0)
    starts = np.concatenate([[0] * bool(len(order)), np.flatnonzero(~same) + 1, [len(order)]]).astype(np.int64)
    of_length = np.searchsorted(sorted_.lengths[starts[:-1]], np.arange(MAX_TOKENS + 2)).astype(np.int64)
    return QueryTable(sorted_, Runs(starts, of_length), rank[places.reshape(-1)], variant)


@kernel
def _admit(entries: Any, mask: Any, queries: Any, runs: Runs, prefix_masks: Any, scratch: Any, found: Any) -> None:
    """Marks the queries that some entry admits. `scratch` takes the content of the entries that begin alike."""
    count = len(entries.contents)
    for length in range(len(runs.of_length) - 1):
        low, high = runs.of_length[length], runs.of_length[length + 1]
        prefix_mask = prefix_masks[length]
        entry = 0
        while entry < count and low < high:
            order = entries.orders[entry] & prefix_mask
            alike = 0
            while entry < count and entries.orders[entry] & prefix_mask == order:
                if entries.lengths[entry] >= length:
                    scratch[alike] = entries.contents[entry]
                    alike += 1
                entry += 1
            run = _run_of(order, queries.orders, runs.starts, low, high) if alike else high
            if run < high:
                _admit_run(scratch[:alike], mask, queries, runs.starts[run], runs.starts[run + 1], found)


@kernel
def _run_of(order: Any, orders: Any, starts: Any, low: Any, high: Any) -> Any:
    """The run of this order, of those from `low` to `high`; `high` if there is none."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if orders[starts[middle]] < order:
            low = middle + 1
        else:
            high = middle
    return low if low < end and orders[starts[low]] == order else end


@kernel
def _admit_run(contents: Any, mask: Any, queries: Any, first: Any, last: Any, found: Any) -> None:
    together = contents[0]
    for content in contents:
        together |= content
    for query in range(first, last):
        asked = queries.contents[query]
        if queries.truncated[query]:
            asked &= ~mask
        if asked & ~together != 0:
            continue  # as most do not match
        for content in contents:
            if asked & ~content == 0:
                found[query] = True
                break
