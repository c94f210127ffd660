"""The nodes that a path selects in a document, written out as they stand there."""

from __future__ import annotations

from functools import lru_cache

from lxml import etree

from tidings.xml.document import TEXT, Nodes, parse_document
from tidings.xml.path_meaning import Document
from tidings.xml.path_parser import parse_path

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


def _written(element: etree._Element) -> str:
    return str(etree.tostring(element, encoding="unicode", with_tail=False))
