"""The nodes that a path selects in a document, written out as they stand there."""

from __future__ import annotations

from functools import lru_cache

from lxml import etree

from tidings.model.xpath.document import parse_document
from tidings.model.xpath.names import with_prefixes


def selected_nodes(document: str | bytes, path: str) -> list[str]:
    """Elements as XML, attributes and texts as they are, in the document's order; raises EventError for no document."""
    root = parse_document(document)
    found = _compiled(path)(root.getroottree())
    return [
        etree.tostring(node, encoding="unicode", with_tail=False) if isinstance(node, etree._Element) else str(node)
        for node in found
    ]


@lru_cache(maxsize=1024)
def _compiled(path: str) -> etree.XPath:
    text, namespaces = with_prefixes(path)
    if not text.startswith("/"):
        text = f"/{text}"  # from the document, as in a query
    return etree.XPath(text, namespaces=namespaces, smart_strings=False)
