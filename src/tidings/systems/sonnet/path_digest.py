"""Sonnet's path digests: what a path query asks for, and what a document has to offer, in 128 bits.

    48 bits  content  a bit for each token, by hash
    56 bits  order    how the first 2, 3 … 8 tokens are ordered, and a bit: there is more to the query than these
     4 bits  length   how many leading tokens are kept, 0 to 8
    20 bits  node     different for nodes with one query

A token is the name of a step, or a value that a node is to equal: at the end of a path in order, in a predicate on the
way without. A document's header has a digest for each distinct path from its root to a leaf, and the content of all its
names and values together (its *mask*). A query is *admitted* where some entry begins as it does; whatever a document
satisfies is admitted, and some more.

After Zhou et al., "Sonnet: an efficient distributed content-based dissemination broker", SIGMOD 2007, section 3.1. The
layout of the bits is ours: the demonstration paper gives the widths of content and order alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from math import factorial
from typing import Literal, TypeAlias

from tidings.xml.path_parser import AllOf, Compare, Exists, PathStep, Predicate, TextTest, XPath

CONTENT_BITS, ORDER_BITS, LENGTH_BITS, NODE_BITS = 48, 56, 4, 20
MAX_TOKENS = 8
RANK_BITS = tuple((factorial(length) - 1).bit_length() for length in range(2, MAX_TOKENS + 1))
HASH_BITS = 7
VALUE_BYTES = 64  # of a value that is a token wherever it is

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


def is_token(value: bytes) -> bool:
    """Whether a value counts wherever it is: what is long is hardly asked for, and would fill a document's mask."""
    return len(value) <= VALUE_BYTES


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
    equal. Of all else, only that its names and values occur in the document.
    """
    tokens = query_tokens(path)
    kept = tokens[:MAX_TOKENS]
    required = required_tokens(path).difference(kept)
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


def required_tokens(path: XPath) -> frozenset[str]:
    """The names and values without which a document does not satisfy a query."""
    return frozenset[str]().union(*map(_required_of_step, path.steps))


def _required_of_step(step: PathStep) -> set[str]:
    required = {step.test.symbol} if step.test.local is not None else set()
    return required.union(*map(_required, step.predicates))


def _required(predicate: Predicate) -> set[str]:
    """The tokens without which a predicate is not true; OR and NOT ask for none."""
    match predicate:
        case AllOf(operands):
            return set[str]().union(*map(_required, operands))
        case Compare(path, "=", str(value)) if is_token(value.encode()):
            return {*required_tokens(path), value_token(value)}
        case Exists(path) | Compare(path, _, _):
            return set(required_tokens(path))
        case TextTest(_, path, text) if text:
            return set(required_tokens(path))
    return set()
