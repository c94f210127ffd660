"""What a path means, said as plainly as can be: a walk over one document's nodes, as XPath 1.0 has it.

Slow, and obviously right: the index of many paths is held to it, and it to lxml.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tidings.extras import LazyModule
from tidings.xml.document import TEXT, Nodes, parse_document
from tidings.xml.path_parser import (
    AllOf,
    AnyOf,
    Compare,
    Exists,
    Negated,
    NodeTest,
    PathStep,
    Predicate,
    TextTest,
    XPath,
    clark,
    number_of,
    parse_path,
)

etree: Any = LazyModule("lxml.etree")

ROOT = -1  # the node above the root element

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Document:
    """One document's columns of nodes, for paths to be evaluated on."""

    def __init__(
        self, names: Sequence[str], node_names: Sequence[int], ends: Sequence[int], starts: Sequence[int],
        stops: Sequence[int], text: bytes,
    ) -> None:  # fmt: skip
        self._names = names
        self._node_names = node_names
        self._ends = ends
        self._starts = starts
        self._stops = stops
        self._text = text

    def nodes(self) -> Iterator[tuple[str, int, bytes]]:
        """Of each node, in the document's order: its name, where what is in it ends, and its string-value."""
        text = self._text
        for number, end, start, stop in zip(self._node_names, self._ends, self._starts, self._stops, strict=True):
            yield self._names[number], end, text[start:stop]

    def holds(self, path: XPath) -> bool:
        """Whether the path selects anything."""
        return bool(self.select(path))

    def select(self, path: XPath) -> list[int]:
        """The nodes that the path selects, in the document's order."""
        return self._along(path.steps, [ROOT])

    def reached(self, path: XPath) -> int:
        """How many of the path's steps, from the first, select anything."""
        return next(
            (number for number in range(len(path.steps)) if not self._along(path.steps[: number + 1], [ROOT])),
            len(path.steps),
        )

    def string(self, node: int) -> str:
        """The string-value of a node: all text in it."""
        return self._text[self._starts[node] : self._stops[node]].decode()

    def _along(self, steps: tuple[PathStep, ...], nodes: list[int]) -> list[int]:
        for step in steps:
            found = {below for node in nodes for below in self._below(node, step.descendant)}
            tested = (node for node in sorted(found) if self._is(node, step.test))
            nodes = [node for node in tested if all(self._true(one, node) for one in step.predicates)]
        return nodes

    def _below(self, node: int, descendant: bool) -> Iterator[int]:
        """Attributes, texts and elements in a node, or in all that is in it."""
        ends = self._ends
        end = len(ends) if node == ROOT else ends[node]
        below = node + 1
        while below < end:
            yield below
            below = below + 1 if descendant else ends[below]

    def _is(self, node: int, test: NodeTest) -> bool:
        name = self._names[self._node_names[node]]
        kind = "text" if name == TEXT else "attribute" if name[0] == "@" else "element"
        if kind != test.kind:
            return False
        name = name.removeprefix("@")
        if test.namespace is None:
            return True
        if test.local is None:
            return name.startswith(f"{{{test.namespace}}}") if test.namespace else name[0] != "{"
        return name == clark(test.namespace, test.local)

    def _true(self, predicate: Predicate, node: int) -> bool:
        match predicate:
            case Exists(path):
                return bool(self._along(path.steps, [node]))
            case Compare(path, op, value):
                texts = map(self.string, self._along(path.steps, [node]))
                values = texts if isinstance(value, str) else map(number_of, texts)
                return any(_COMPARED[op](one, value) for one in values)
            case TextTest(function, path, text):
                found = self._along(path.steps, [node])
                first = self.string(found[0]) if found else ""
                return text in first if function == "contains" else first.startswith(text)
            case Negated(operand):
                return not self._true(operand, node)
            case AllOf(operands):
                return all(self._true(operand, node) for operand in operands)
            case AnyOf(operands):
                return any(self._true(operand, node) for operand in operands)


def read_document(document: str | bytes) -> Document:
    """A document; raises EventError where it cannot be read."""
    nodes = Nodes()
    nodes.add(parse_document(document))
    text = b"".join(nodes.text)
    return Document(list(nodes.numbers), nodes.names, nodes.ends, nodes.starts, nodes.stops, text)


_parsed = lru_cache(maxsize=1024)(parse_path)


def selected_nodes(document: str | bytes, path: str) -> list[str]:
    """Elements as XML, attributes and texts as they are, in the document's order; raises EventError for no document."""
    root = parse_document(document)
    nodes = Nodes()
    nodes.add(root)
    names = list(nodes.numbers)
    read = Document(names, nodes.names, nodes.ends, nodes.starts, nodes.stops, b"".join(nodes.text))
    chosen = set(read.select(_parsed(path)))
    elements = (element for element in root.iter() if isinstance(element.tag, str))  # in the order of the columns
    written = []
    for node, number in enumerate(nodes.names):
        element = None if names[number] == TEXT or names[number][0] == "@" else next(elements)
        if node in chosen:
            written.append(read.string(node) if element is None else _written(element))
    return written


def _written(element: Any) -> str:
    return str(etree.tostring(element, encoding="unicode", with_tail=False))
