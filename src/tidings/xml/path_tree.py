"""A path query as plain frozen records: steps, and predicates on them.

A path is true of a document where it selects at least one node. Abbreviations are written out by the
parser: `//` is the descendant axis of the step after it, `[a and b]` is two predicates, a string that
is ordered (`[price < "20"]`) is the number it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as Choice
from typing import TypeAlias

Kind: TypeAlias = Choice["element", "attribute", "text"]
Operator: TypeAlias = Choice["=", "!=", "<", "<=", ">", ">="]
TextFunction: TypeAlias = Choice["contains", "starts-with"]


@dataclass(frozen=True, slots=True)
class Test:
    """What a node has to be: of a kind, in a namespace (None: any), with a local name (None: any)."""

    kind: Kind
    namespace: str | None = None
    local: str | None = None

    @property
    def symbol(self) -> str:
        """The name that a node of the document goes by, where this asks for exactly one: `{uri}a`, `@{uri}a`."""
        assert self.local is not None
        return ("@" if self.kind == "attribute" else "") + clark(self.namespace, self.local)


@dataclass(frozen=True, slots=True)
class Step:
    descendant: bool  # at any depth below, else a child or an attribute
    test: Test
    predicates: tuple[Predicate, ...] = ()
    at: int = field(default=0, compare=False, repr=False)  # 1-based column in the path's text


@dataclass(frozen=True, slots=True)
class Path:
    """Steps from the document's root, or within a predicate from the node it is about: none is the node itself."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    path: Path


@dataclass(frozen=True, slots=True)
class Compare:
    """True where one of the nodes compares so: as a string with a string, as a number with a number."""

    path: Path
    op: Operator
    value: str | float


@dataclass(frozen=True, slots=True)
class TextTest:
    """Of the first node in the document's order; where there is none, of the empty string."""

    function: TextFunction
    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Not:
    operand: Predicate


@dataclass(frozen=True, slots=True)
class All:
    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Any:
    operands: tuple[Predicate, ...]


Predicate: TypeAlias = Exists | Compare | TextTest | Not | All | Any

SELF = Path(())


def clark(namespace: str | None, local: str) -> str:
    """A name with its namespace, as `{uri}local`."""
    return f"{{{namespace}}}{local}" if namespace else local
