"""Paths and documents, as Sonnet's nodes understand them, and the groups that digests make of queries.

A *lineage* is what a virtual node stands for: the tokens that its query keeps in order, and its digest. Its parent has
one token less; that of a query of which more is asked than its kept tokens (`//`, `*`, predicates on the way) is the
group of these tokens. The last parent is the group of the 0-nodes, which keeps nothing.

A virtual node's place on the ring is its digest's 128 bits and then the id of its host, so that a node that knows the
one can reach the other. So a group is a range of the ring.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tidings.errors import EventError
from tidings.systems.protocols.content import ExactChecks
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed
from tidings.systems.sonnet.document_header import Header, QueryTable, header_of, query_table
from tidings.systems.sonnet.messages import Packet
from tidings.systems.sonnet.path_digest import (
    MAX_TOKENS,
    NODE_BITS,
    Digest,
    Ordering,
    Tokens,
    digest_of,
    from_bits,
    query_digest,
    query_tokens,
    to_bits,
)
from tidings.systems.sonnet.placement import View, network_view
from tidings.xml.path_meaning import Document, read_document
from tidings.xml.path_parser import XPath, parse_path

HOST_BITS = 48
RING_BITS = 128 + HOST_BITS
REMEMBERED = 65_536  # queries, and documents
REMEMBERED_TABLES = 1 << 14  # of groups that hang below one
MAX_PATHS = 10_000  # different ones of a document: its header travels with it

_HOST_MASK = (1 << HOST_BITS) - 1


def host_of(id: Id) -> Id:
    """The host of a virtual node; a host's own id is itself."""
    return id & _HOST_MASK


def node_bits(variant: Ordering) -> int:
    """How many bits tell nodes of one group apart: with hashes, one of them says that a query is truncated."""
    return NODE_BITS if variant == "ranks" else NODE_BITS - 1


def group_of(id: Id, variant: Ordering) -> int:
    """The group of a virtual node."""
    bits = node_bits(variant)
    return id >> (HOST_BITS + bits) << bits


class Range(NamedTuple):
    """A group's part of the ring: [low, high)."""

    low: Id
    high: Id


def range_of(group: int, variant: Ordering) -> Range:
    low = group << HOST_BITS
    return Range(low, low + (1 << (HOST_BITS + node_bits(variant))))


@lru_cache(REMEMBERED)
def group_digest(group: int, variant: Ordering) -> Digest:
    """The digest that a group is named by; raises ValueError where it is none."""
    return from_bits(group, variant)


@dataclass(frozen=True, slots=True)
class Lineage:
    tokens: Tokens
    digest: Digest

    @property
    def group(self) -> int:
        return to_bits(replace(self.digest, node=0))

    @property
    def is_zero(self) -> bool:
        """Whether this is the group of the 0-nodes (section 3.3.1), where packets enter."""
        return not self.tokens and not self.digest.truncated

    @property
    def parent(self) -> Lineage | None:
        if self.is_zero:
            return None
        tokens = self.tokens if self.digest.truncated else self.tokens[:-1]
        return Lineage(tokens, digest_of(tokens, self.digest.variant))

    def id_at(self, host: Id, node_digest: int) -> Id:
        return to_bits(replace(self.digest, node=node_digest)) << HOST_BITS | host


def zero_lineage(variant: Ordering) -> Lineage:
    return Lineage((), digest_of((), variant))


def zero_id(lineage: Lineage, host: Id, name: str) -> Id:
    """The id of a host's virtual node for a name; for its 0-node, which has none, everybody can work it out."""
    return lineage.id_at(host, hashed(f"{host} {name}", node_bits(lineage.digest.variant)))


def lineage_of(path: XPath, variant: Ordering) -> Lineage:
    """A query that keeps no token hangs below the 0-nodes and is none of them: they do not multicast."""
    digest = query_digest(path, variant=variant)
    kept = query_tokens(path)[:MAX_TOKENS]
    return Lineage(kept, digest if kept else replace(digest, truncated=True))


def hangs_below(node: Digest, child: Digest) -> bool:
    """Whether a group gets its packets from another (section 3.2): those that its header admits.

    The content of the other is the node's or has one more bit (rule 2), its order begins with the node's and is one
    token longer, without which nodes of equal content would send to each other in a circle.
    """
    if node.truncated or node.content & ~child.content or not node.starts(child):
        return False
    if child.truncated and child.length == node.length:
        return True
    return not child.truncated and child.length == node.length + 1 and (child.content ^ node.content).bit_count() <= 1


class Paths:
    """What queries and documents mean under a View, worked out once in a process and remembered."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view if view is not None else network_view()
        self.variant: Ordering = self.view.ordering
        self.checks = ExactChecks()
        self.query = lru_cache(REMEMBERED)(parse_path)
        self.lineage = lru_cache(REMEMBERED)(self._lineage)
        self._document = lru_cache(REMEMBERED)(self._read)
        self._packed = lru_cache(REMEMBERED)(self._pack)
        self.header = lru_cache(REMEMBERED)(self._header)
        self._table = lru_cache(REMEMBERED_TABLES)(self._compile)

    def _lineage(self, text: str) -> Lineage:
        return lineage_of(self.query(text), self.variant)

    def holds(self, text: str, event: Event) -> bool:
        """The exact filter, on the upper layer of a node (section 2)."""
        return self.checks.noted(self._document(event.body).holds(self.query(text)))

    def document(self, event: Event) -> Document:
        """The event, read; raises EventError where it is no document."""
        return self._document(event.body)

    def packet(self, event: Event) -> Packet:
        """The event with its header; raises EventError where it is no document."""
        entries, mask = self._packed(event.body)
        return Packet(event, entries, mask)

    def _read(self, body: str) -> Document:
        return read_document(_text(body))

    def _pack(self, body: str) -> tuple[tuple[int, ...], int]:
        header = header_of(self._document(body), self.variant)
        if len(header.entries) > MAX_PATHS:
            raise EventError(
                f"the document has {len(header.entries):,} different paths, and at most {MAX_PATHS:,} are taken; "
                "publish it in parts"
            )
        return header.entries, header.mask

    def _header(self, entries: tuple[int, ...], mask: int) -> Header:
        """Raises ValueError where these are no digests."""
        header = Header(entries, mask, self.variant)
        _ = header.columns  # which raises, and is needed next
        return header

    def admitted(self, groups: tuple[int, ...], packet: Packet) -> list[bool]:
        """Of each group, whether the packet's document may satisfy its queries."""
        found: list[bool] = self._table(groups).admitted(self.header(packet.entries, packet.mask)).tolist()
        return found

    def _compile(self, groups: tuple[int, ...]) -> QueryTable:
        return query_table(groups, self.variant)


def _text(body: str) -> str:
    document = json.loads(body)
    if not isinstance(document, str):
        raise EventError("a publication is one XML document, as text")
    return document
