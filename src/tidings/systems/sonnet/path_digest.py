"""Sonnet's path digests: what a path query asks for, and what a document has to offer, in 128 bits.

    48 bits  content  a bit for each token, by hash
    56 bits  order    how the first 2, 3 … 8 tokens are ordered, and a bit: there is more to the query than these
     4 bits  length   how many leading tokens are kept, 0 to 8
    20 bits  node     different for nodes with one query

A token is the name of a step, and at the end of a path the value that its last node is to have. A document's header has
a digest for each distinct path from its root to a leaf, and the content of them all together (its *mask*). A query is
*admitted* where some entry begins as it does; whatever a document satisfies is admitted, and some more.

After Zhou et al., "Sonnet: an efficient distributed content-based dissemination broker", SIGMOD 2007, section 3.1. The
layout of the bits is ours: the demonstration paper gives the widths of content and order alone.

A *group* is a length, the content of so many leading tokens and the rank of their order: queries whose paths begin
alike. Or it is one token, for queries that say nothing of how their documents begin (`//title`). A query is satisfied
by no document that does not offer every one of its groups: every path from the root that it asks for, on its way to the
nodes it selects or in a predicate, and every name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from math import factorial
from typing import Literal, NamedTuple, TypeAlias

from tidings.xml.document import TEXT, Nodes, parse_document
from tidings.xml.document_columns import Documents
from tidings.xml.path_parser import AllOf, Compare, Exists, PathStep, Predicate, TextTest, XPath

CONTENT_BITS, ORDER_BITS, LENGTH_BITS, NODE_BITS = 48, 56, 4, 20
MAX_TOKENS = 8
RANK_BITS = tuple((factorial(length) - 1).bit_length() for length in range(2, MAX_TOKENS + 1))
HASH_BITS = 7

assert RANK_BITS == (1, 3, 5, 7, 10, 13, 16)
assert sum(RANK_BITS) + 1 == ORDER_BITS == MAX_TOKENS * HASH_BITS
assert CONTENT_BITS + ORDER_BITS + LENGTH_BITS + NODE_BITS == 128

Tokens: TypeAlias = tuple[str, ...]
Ordering: TypeAlias = Literal["ranks", "hashes"]  # of the order: the paper's, or one that distinguishes more


@dataclass(frozen=True, slots=True)
class Digest:
    """The parts of a digest; `order` has a number for each prefix of the kept tokens, from that of one token on."""

    content: int
    order: tuple[int, ...]
    truncated: bool = (
        False  # there is more to the query than the kept tokens: its content is that of the whole document
    )
    node: int = 0
    variant: Ordering = "ranks"

    @property
    def length(self) -> int:
        return len(self.order)

    def starts(self, other: Digest) -> bool:
        """Whether the other's tokens begin in the same order."""
        return self.order == other.order[: self.length]


# ---------------------------------------------------------------------- tokens


@lru_cache(maxsize=1 << 16)
def _hashed(token: str) -> int:
    return int.from_bytes(blake2b(token.encode(), digest_size=8).digest(), "big")


def content_of(tokens: Iterable[str]) -> int:
    """A bit for each token."""
    content = 0
    for token in tokens:
        content |= 1 << _hashed(token) % CONTENT_BITS
    return content


def permutation_of(tokens: Sequence[str]) -> tuple[int, ...]:
    """The place of each token in alphabetical order; of equal ones the first is before."""
    order = sorted(range(len(tokens)), key=lambda place: (tokens[place], place))
    places = [0] * len(tokens)
    for rank, place in enumerate(order):
        places[place] = rank
    return tuple(places)


def rank_of(permutation: Sequence[int]) -> int:
    """Lehmer's rank: how many permutations come before this one in lexicographic order."""
    rank = 0
    for place, value in enumerate(permutation):
        smaller = sum(later < value for later in permutation[place + 1 :])
        rank += smaller * factorial(len(permutation) - 1 - place)
    return rank


def digest_of(tokens: Tokens, variant: Ordering = "ranks") -> Digest:
    """The digest of a path, by its first eight tokens; its content is that of all."""
    kept = tokens[:MAX_TOKENS]
    prefixes = [kept[: length + 1] for length in range(len(kept))]
    if variant == "ranks":
        order = tuple(rank_of(permutation_of(prefix)) for prefix in prefixes)
    else:
        order = tuple(_hashed("\0".join(prefix)) % (1 << HASH_BITS) for prefix in prefixes)
    return Digest(content_of(tokens), order, len(tokens) > MAX_TOKENS, variant=variant)


def value_token(text: str) -> str:
    """The token of a value: no name looks like it, and every name is after it in the order."""
    return f"={text}"


# ---------------------------------------------------------------------- bits


def to_bits(digest: Digest) -> int:
    """The digest as a number of 128 bits.

    The rank of one token, always 0, takes none of them. Hashes take all of the order's: `truncated` is then a bit of
    the node's.
    """
    order = 0
    if digest.variant == "ranks":
        for place, width in enumerate(RANK_BITS, 1):
            order = order << width | (digest.order[place] if place < digest.length else 0)
        order = order << 1 | digest.truncated
        node = digest.node % (1 << NODE_BITS)
    else:
        for place in range(MAX_TOKENS):
            order = order << HASH_BITS | (digest.order[place] if place < digest.length else 0)
        node = digest.truncated << (NODE_BITS - 1) | digest.node % (1 << (NODE_BITS - 1))
    bits = digest.content << ORDER_BITS | order
    return (bits << LENGTH_BITS | digest.length) << NODE_BITS | node


def from_bits(bits: int, variant: Ordering = "ranks") -> Digest:
    """The digest that has these bits."""
    node, bits = bits & ((1 << NODE_BITS) - 1), bits >> NODE_BITS
    length, bits = bits & ((1 << LENGTH_BITS) - 1), bits >> LENGTH_BITS
    order, content = bits & ((1 << ORDER_BITS) - 1), bits >> ORDER_BITS
    if length > MAX_TOKENS or content >> CONTENT_BITS:
        raise ValueError("these are not the bits of a digest")
    if variant == "ranks":
        truncated, order = bool(order & 1), order >> 1
        widths: tuple[int, ...] = (0, *RANK_BITS)
    else:
        truncated, node = bool(node >> (NODE_BITS - 1)), node & ((1 << (NODE_BITS - 1)) - 1)
        widths = (HASH_BITS,) * MAX_TOKENS
    numbers: list[int] = []
    for width in reversed(widths):
        numbers.append(order & ((1 << width) - 1))
        order >>= width
    return Digest(content, tuple(numbers[::-1][:length]), truncated, node, variant)


# ---------------------------------------------------------------------- queries


def query_tokens(path: XPath) -> Tokens:
    """The tokens up to the first `//` or `*`, with the value that the last step has to equal."""
    leading = _leading(path.steps)
    tokens = tuple(step.test.symbol for step in leading)
    value = _final_value(path.steps[-1]) if len(leading) == len(path.steps) else None
    return tokens if value is None else (*tokens, value_token(value))


def query_digest(path: XPath, *, node: int = 0, variant: Ordering = "ranks") -> Digest:
    """The digest of a path query.

    The tokens up to the first `//` or `*`, eight at most, are kept in order, with the value that the last step has to
    equal. Of all else, only that its names occur in the document.
    """
    leading, tokens = _leading(path.steps), query_tokens(path)
    kept = tokens[:MAX_TOKENS]
    required = {token for token in tokens[: len(leading)] if token not in kept}
    for number, step in enumerate(path.steps):
        required |= _required_of_step(step, named=number >= len(leading))
    digest = digest_of(kept, variant)
    more = bool(required) or len(tokens) > MAX_TOKENS
    return replace(digest, content=digest.content | content_of(required), truncated=more, node=node)


def _leading(steps: tuple[PathStep, ...]) -> tuple[PathStep, ...]:
    for number, step in enumerate(steps):
        if step.descendant or step.test.local is None:
            return steps[:number]
    return steps


def _final_value(step: PathStep) -> str | None:
    for predicate in step.predicates:
        match predicate:
            case Compare(XPath(()), "=", str(value)):
                return value
    return None


def required_names(path: XPath) -> frozenset[str]:
    """The names without which a document does not satisfy a query."""
    return frozenset[str]().union(*(_required_of_step(step, named=True) for step in path.steps))


def _required_of_step(step: PathStep, *, named: bool) -> set[str]:
    """The names that a step asks for, beside its own where that is kept in order."""
    required = {step.test.symbol} if named and step.test.local is not None else set()
    return required.union(*map(_required, step.predicates))


def _required(predicate: Predicate) -> set[str]:
    """The names without which a predicate is not true; OR and NOT ask for none."""
    match predicate:
        case AllOf(operands):
            return set[str]().union(*map(_required, operands))
        case Exists(path) | Compare(path, _, _):
            return set(required_names(path))
        case TextTest(_, path, text) if text:
            return set(required_names(path))
    return set()


# ---------------------------------------------------------------------- documents


@dataclass(frozen=True, slots=True)
class Header:
    """What a packet carries: an entry for each distinct path, and the content of all names."""

    entries: frozenset[Digest]
    mask: int

    @property
    def bytes(self) -> int:
        return 16 * len(self.entries)


def document_paths(document: str | bytes) -> tuple[frozenset[Tokens], frozenset[str]]:
    """The paths of a document from its root down, with the value at their end, and all its names.

    A path ends at every attribute and element: a query may ask for the text of an element that has others in it.
    """
    nodes = Nodes()
    nodes.add(parse_document(document))
    names = list(nodes.numbers)
    text = b"".join(nodes.text)
    paths: set[Tokens] = set()
    above: list[tuple[int, Tokens]] = []
    for node, number in enumerate(nodes.names):
        if names[number] == TEXT:
            continue
        while above and node >= above[-1][0]:
            above.pop()
        tokens = (*above[-1][1], names[number]) if above else (names[number],)
        paths.add((*tokens, value_token(text[nodes.starts[node] : nodes.stops[node]].decode())))
        above.append((nodes.ends[node], tokens))
    return frozenset(paths), frozenset(names) - {TEXT}


def header_of(document: str | bytes, variant: Ordering = "ranks") -> Header:
    """The header of a document; raises EventError where it cannot be read."""
    paths, names = document_paths(document)
    entries = frozenset(replace(digest_of(tokens, variant), truncated=False) for tokens in paths)
    return Header(entries, content_of(names))


def admits(header: Header, query: Digest) -> bool:
    """Whether a document with this header may satisfy a query: never wrongly no."""
    if query.truncated:
        # What is not kept in order may lie anywhere in the document; a value that is kept is in no mask.
        return any(
            query.starts(entry) and not query.content & ~(header.mask | entry.content) for entry in header.entries
        )
    return any(query.starts(entry) and not query.content & ~entry.content for entry in header.entries)


def forwards(header: Header, node: Digest, next_node: Digest) -> bool:
    """Whether a packet goes from a node down to another: to queries that go on where the node's ends (section 3.2).

    The content of the other is the node's or has one more bit (2), its order begins with the node's and is one token
    longer, without which nodes of equal content would send to each other in a circle, and the document may satisfy
    it (1, 3).
    """
    return (
        next_node.length == node.length + 1
        and node.starts(next_node)
        and not node.content & ~next_node.content
        and (next_node.content ^ node.content).bit_count() <= 1
        and admits(header, next_node)
    )


VALUE_BYTES = 64  # of a value that is a token; what is longer is not looked at

_ENTRIES = 1 << 16  # paths of documents that are kept in mind


class PathGroup(NamedTuple):
    """Paths with this beginning, or with `token` somewhere where the length is 0."""

    length: int
    content: int = 0
    rank: int = 0
    token: str = ""


@lru_cache(maxsize=1 << 16)
def prefix_group(tokens: Tokens) -> PathGroup:
    digest = digest_of(tokens)
    return PathGroup(digest.length, digest.content, digest.order[-1] if digest.order else 0)


def token_group(token: str) -> PathGroup:
    return PathGroup(0, token=token)


# ---------------------------------------------------------------------- queries


def groups_asked(path: XPath) -> frozenset[PathGroup]:
    """The groups that every document offers that satisfies the query."""
    asked = {token_group(name) for name in required_names(path)}
    for tokens in _rooted((), path.steps):
        asked.update(prefix_group(tokens[:length]) for length in range(1, min(len(tokens), MAX_TOKENS) + 1))
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
        if value is not None and len(value.encode()) <= VALUE_BYTES:
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

    def __init__(self, tokens: Tokens, group: int, content: int, values: dict[int, int]) -> None:
        self.tokens = tokens
        self.group = group  # its number, -1 for none
        self.content = content
        self.values = values  # the groups of this path with a value at its end, by their content
        self.below: dict[str, _Entry | None] = {}


class Offers:
    """Finds which of some groups documents offer."""

    def __init__(self, numbers: dict[PathGroup, int]) -> None:
        self._tokens = {group.token: number for group, number in numbers.items() if not group.length}
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
            if entry.values and stops[node] - starts[node] <= VALUE_BYTES:
                value = documents.text[starts[node] : stops[node]].tobytes().decode()
                found.add(entry.values.get(entry.content | content_of((value_token(value),)), -1))
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
        group = prefix_group(tokens)
        number = self._by_order.get((group.length, group.rank), {}).get(group.content, -1)
        # A value is before every name, so that its path has the same rank whatever it is.
        rank = rank_of(permutation_of((*tokens, value_token(""))))
        values = self._by_order.get((group.length + 1, rank), {})
        return _Entry(tokens, number, group.content, values)
