"""Groups of paths that begin alike: which of them a query asks for, and which a document offers.

A group is a length, the content of so many leading tokens and the rank of their order. Or it is one token, a name or a
value, for queries that say nothing of how their documents begin (`//title`). A query is satisfied by no document that
does not offer every one of its groups: every path from the root that it asks for, on its way to the nodes it selects or
in a predicate, and every name and value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from tidings.systems.sonnet.path_digest import (
    MAX_TOKENS,
    VALUE_BYTES,
    Ordering,
    Tokens,
    content_of,
    digest_of,
    is_token,
    permutation_of,
    rank_of,
    required_tokens,
    value_token,
)
from tidings.xml.document import TEXT
from tidings.xml.document_columns import Documents
from tidings.xml.path_parser import AllOf, Compare, Exists, PathStep, Predicate, TextTest, XPath

_ENTRIES = 1 << 16  # paths of documents that are kept in mind


class PathGroup(NamedTuple):
    """Paths with this beginning, or with `token` somewhere where the length is 0."""

    length: int
    content: int = 0
    rank: int = 0  # of the order of its tokens, or a hash of them
    token: str = ""


@lru_cache(maxsize=1 << 16)
def prefix_group(tokens: Tokens, ordering: Ordering = "ranks") -> PathGroup:
    """The group of paths that begin with these tokens: what their digest says of it."""
    digest = digest_of(tokens, ordering)
    return PathGroup(digest.length, digest.content, digest.order[-1] if digest.order else 0)


def token_group(token: str) -> PathGroup:
    return PathGroup(0, token=token)


# ---------------------------------------------------------------------- queries


def groups_asked(path: XPath, ordering: Ordering = "ranks") -> frozenset[PathGroup]:
    """The groups that every document offers that satisfies the query."""
    asked = {token_group(token) for token in required_tokens(path)}
    for tokens in _rooted((), path.steps):
        lengths = range(1, min(len(tokens), MAX_TOKENS) + 1)
        asked.update(prefix_group(tokens[:length], ordering) for length in lengths)
    return frozenset(asked)


def _rooted(before: Tokens, steps: tuple[PathStep, ...], value: str | None = None) -> Iterator[Tokens]:
    """Paths from the root, up to the first `//` or `*` of each, with the value that is at the end of one."""
    tokens = before
    for step in steps:
        if step.descendant or step.test.local is None:
            break
        tokens = (*tokens, step.test.symbol)
        for predicate in step.predicates:
            yield from _branches(tokens, predicate)
    else:
        if value is not None and is_token(value.encode()):
            tokens = (*tokens, value_token(value))
    yield tokens


def _branches(tokens: Tokens, predicate: Predicate) -> Iterator[Tokens]:
    match predicate:
        case AllOf(operands):
            for operand in operands:
                yield from _branches(tokens, operand)
        case Compare(path, "=", str(value)):
            yield from _rooted(tokens, path.steps, value)
        case Exists(path) | Compare(path, _, _):
            yield from _rooted(tokens, path.steps)
        case TextTest(_, path, text) if text:
            yield from _rooted(tokens, path.steps)


# ---------------------------------------------------------------------- documents


class _Entry:
    """A path of names from the root, as documents have it."""

    __slots__ = ("below", "content", "group", "tokens", "values")

    def __init__(self, tokens: Tokens, group: int, content: int, values: Mapping[int, int] | None) -> None:
        self.tokens = tokens
        self.group = group  # its number, -1 for none
        self.content = content
        # The groups of this path with a value at its end, by their content; None where a value decides their order too.
        self.values = values
        self.below: dict[str, _Entry | None] = {}


class Offers:
    """Finds which of some groups documents offer."""

    def __init__(self, numbers: dict[PathGroup, int], ordering: Ordering = "ranks") -> None:
        self._ordering: Ordering = ordering
        self._tokens = {group.token: number for group, number in numbers.items() if not group.length}
        self._has_values = any(token[0] == "=" for token in self._tokens)
        self._by_order: dict[tuple[int, int], dict[int, int]] = {}
        for group, number in numbers.items():
            if group.length:
                self._by_order.setdefault((group.length, group.rank), {})[group.content] = number
        self._longest = max((length for length, _ in self._by_order), default=0)
        self._root = self._entry(())
        self._entries = 0

    def of(self, documents: Documents, document: int) -> set[int]:
        """The numbers of the groups that a document offers; of what is no document, none."""
        if self._entries > _ENTRIES:
            self._root, self._entries = self._entry(()), 0
        first, last = int(documents.roots[document]), int(documents.roots[document + 1])
        names = [documents.names[number] for number in documents.node_names[first:last].tolist()]
        ends = documents.ends[first:last].tolist()
        starts, stops = documents.starts[first:last].tolist(), documents.stops[first:last].tolist()
        found = {self._tokens[name] for name in set(names) if name in self._tokens}
        if self._has_values:
            spans = {(start, stop) for start, stop in zip(starts, stops, strict=True) if stop - start <= VALUE_BYTES}
            values = (value_token(_text(documents, *span)) for span in spans)
            found.update(self._tokens[value] for value in values if value in self._tokens)
        above: list[tuple[int, _Entry]] = [(last + 1, self._root)]
        node, count = 0, last - first
        while node < count:
            name = names[node]
            if name == TEXT:
                node += 1
                continue
            while first + node >= above[-1][0]:
                above.pop()
            entry = self._below(above[-1][1], name)
            if entry is None:
                node = ends[node] - first  # nothing that is in it is in a group either
                continue
            found.add(entry.group)
            if entry.values != {} and stops[node] - starts[node] <= VALUE_BYTES:
                found.add(self._with_value(entry, value_token(_text(documents, starts[node], stops[node]))))
            above.append((ends[node], entry))
            node += 1
        found.discard(-1)
        return found

    def _below(self, entry: _Entry, name: str) -> _Entry | None:
        try:
            return entry.below[name]
        except KeyError:
            tokens = (*entry.tokens, name)
            made = entry.below[name] = self._entry(tokens) if len(tokens) <= self._longest else None
            self._entries += 1
            return made

    def _entry(self, tokens: Tokens) -> _Entry:
        group = prefix_group(tokens, self._ordering)
        if self._ordering != "ranks":
            return _Entry(tokens, self._number(group), group.content, None if len(tokens) < self._longest else {})
        # A value is before every name, so that its path has the same rank whatever it is.
        rank = rank_of(permutation_of((*tokens, value_token(""))))
        return _Entry(tokens, self._number(group), group.content, self._by_order.get((group.length + 1, rank), {}))

    def _with_value(self, entry: _Entry, value: str) -> int:
        if entry.values is None:
            return self._number(prefix_group((*entry.tokens, value), self._ordering))
        return entry.values.get(entry.content | content_of((value,)), -1)

    def _number(self, group: PathGroup) -> int:
        return self._by_order.get((group.length, group.rank), {}).get(group.content, -1)


def _text(documents: Documents, start: int, stop: int) -> str:
    return documents.text[start:stop].tobytes().decode()
