"""From a text to an XML tree, and nothing that a text could do besides; from a tree to flat columns.

lxml (libxml2) judges what is well-formed. A document type, and with it every entity but XML's own five,
is refused before it is parsed; nothing is fetched, included or expanded; size, depth and attributes
have limits.

In columns, a document's nodes are numbered in its order: an element, its attributes, then what is in it. What
is below node n are the nodes from n + 1 to `ends[n]`, and its string-value is one stretch of the document's text.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any

from tidings.errors import EventError
from tidings.extras import LazyModule

etree: Any = LazyModule("lxml.etree")

MAX_BYTES = 8 << 20
MAX_DEPTH = 256
MAX_ATTRIBUTES = 1_000  # of one element

TEXT = "#text"  # the name of a text node; an attribute's is @name, and names have their namespace as {uri}name

_XINCLUDE = "{http://www.w3.org/2001/XInclude}"

# What may stand before the root element; a document type is what follows, if it is no element.
_PROLOG = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|<\?.*?\?>|<!--.*?-->)*", re.DOTALL)
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


class _Parsers(threading.local):
    """One of each to a thread: a parser has a lock."""

    def __init__(self) -> None:
        self._made: dict[str | None, Any] = {}

    def of(self, encoding: str | None) -> Any:
        if encoding not in self._made:
            self._made[encoding] = _parser(encoding)
        return self._made[encoding]


def _parser(encoding: str | None) -> Any:
    return etree.XMLParser(
        encoding=encoding, resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False,
        attribute_defaults=False, huge_tree=False, recover=False, strip_cdata=True, collect_ids=False,
    )  # fmt: skip


_parsers = _Parsers()


def parse_document(document: str | bytes) -> Any:
    """The root element of a document; raises EventError with what is wrong.

    Bytes are in the encoding that they declare, UTF-8 where they declare none; a text is a text, whatever it says.
    """
    text = isinstance(document, str)
    try:
        data = document.encode() if isinstance(document, str) else document
    except UnicodeEncodeError:
        raise EventError("the document is not valid Unicode") from None
    return parse_bytes(data, text)


def parse_bytes(data: bytes, text: bool) -> Any:
    """As `parse_document`; with `text`, UTF-8 whatever they declare."""
    if len(data) > MAX_BYTES:
        raise EventError(f"the document has {len(data):,} bytes, and {MAX_BYTES:,} are the most")
    if _has_doctype(data):
        raise _doctype()
    try:
        root = etree.fromstring(data, _parsers.of("utf-8" if text else None))
    except etree.XMLSyntaxError as error:
        if "Excessive depth" in str(error) or "depth" in str(error).lower():
            raise too_deep() from None
        raise EventError(f"the document is not well-formed: {_reason(error)}") from None
    except (ValueError, LookupError) as error:
        raise EventError(f"the document cannot be read: {error}") from None
    if root is None:
        raise EventError("the document is not well-formed: it has no element")
    if root.getroottree().docinfo.internalDTD is not None:  # in an encoding that was not looked through
        raise _doctype()
    return root


def check_document(document: str | bytes) -> Any:
    """Returns the root element of a document that `Nodes` takes; raises EventError with what is wrong.

    Six times as fast as making `Nodes` of it: the parser limits the depth, and libxml2 finds what else is refused.
    """
    root = parse_document(document)
    if _has_refused()(root):
        Nodes().add(root)  # which raises, with the reason
    return root


@lru_cache(maxsize=1)
def _has_refused() -> Any:
    """Returns a test of a tree for elements or attributes that `Nodes` refuses."""
    refused = f"boolean(//*[count(@*) > {MAX_ATTRIBUTES}] | //xi:* | //@xi:*)"
    return etree.XPath(refused, namespaces={"xi": _XINCLUDE.strip("{}")})


def too_deep() -> EventError:
    return EventError(f"the document is more than {MAX_DEPTH} elements deep")


def _has_doctype(data: bytes) -> bool:
    if b"<!DOCTYPE" in data:
        start = _PROLOG.match(data)
        assert start is not None
        return data.startswith(b"<!DOCTYPE", start.end())
    return any(mark in data for mark in _wide_marks()) if b"\0" in data else False


@lru_cache(maxsize=1)
def _wide_marks() -> tuple[bytes, ...]:
    return tuple("<!DOCTYPE".encode(encoding) for encoding in _WIDE)


def _doctype() -> EventError:
    return EventError("the document has a document type (<!DOCTYPE …>), which is refused; leave it out")


def _reason(error: Any) -> str:
    return str(error.msg or error).strip()


def document_text(document: bytes) -> str:
    """A document of bytes as a text, from the encoding that it declares; raises EventError where it cannot be read."""
    declaration = document[:200].partition(b"?>")[0] if document.lstrip().startswith(b"<?xml") else b""
    if b"encoding" not in declaration or b"utf-8" in declaration.lower():
        try:
            text = document.decode("utf-8-sig")
            if "\0" not in text:
                return text
        except UnicodeDecodeError:
            pass  # it may be in UTF-16, and need not say so
    return str(etree.tostring(parse_bytes(document, False), encoding="unicode"))


class Nodes:
    """The nodes of some documents, one after the other, in columns."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {TEXT: 0}  # of names
        self.names: list[int] = []  # of each node
        self.ends: list[int] = []
        self.starts: list[int] = []  # of its string-value in the text
        self.stops: list[int] = []
        self.text: list[bytes] = []  # to be joined
        self.size = 0  # of the text, in bytes

    def add(self, root: Any) -> None:
        """A document; raises EventError, and leaves the columns as they were, where it is beyond a limit."""
        before = len(self.names), len(self.text), self.size
        attributes: list[tuple[int, bytes]] = []
        try:
            self._element(root, 1, attributes)
        except EventError:
            self._back_to(*before)
            raise
        for node, value in attributes:  # after the text of all elements, which is thus in one piece
            self.starts[node] = self.size
            self._add_text(value)
            self.stops[node] = self.size

    def _back_to(self, nodes: int, texts: int, size: int) -> None:
        for column in (self.names, self.ends, self.starts, self.stops):
            del column[nodes:]
        del self.text[texts:]
        self.size = size

    def _element(self, element: Any, depth: int, attributes: list[tuple[int, bytes]]) -> None:
        tag = element.tag
        if type(tag) is not str:
            return  # a comment or a processing instruction
        if depth > MAX_DEPTH:
            raise too_deep()
        names, ends, starts, stops, numbers = self.names, self.ends, self.starts, self.stops, self.numbers
        number = numbers.get(tag)
        node = len(names)
        names.append(self._new_name(tag) if number is None else number)
        ends.append(0)
        starts.append(self.size)
        stops.append(0)
        own = element.items()
        if own:
            if len(own) > MAX_ATTRIBUTES:
                raise EventError(f"an element has {len(own):,} attributes, and {MAX_ATTRIBUTES:,} are the most")
            for name, value in own:
                name = "@" + name
                number = numbers.get(name)
                attributes.append((len(names), value.encode()))
                names.append(self._new_name(name) if number is None else number)
                ends.append(len(names))
                starts.append(0)
                stops.append(0)
        if text := element.text:
            self._text_node(text)
        for child in element:
            self._element(child, depth + 1, attributes)
            if text := child.tail:
                self._text_node(text)
        ends[node] = len(names)
        stops[node] = self.size

    def _new_name(self, name: str) -> int:
        if name.startswith(_XINCLUDE):
            raise EventError("the document has an XInclude, which is refused; put in what it includes")
        return self.numbers.setdefault(name, len(self.numbers))

    def _text_node(self, text: str) -> None:
        self.names.append(0)
        self.ends.append(len(self.names))
        self.starts.append(self.size)
        self._add_text(text.encode())
        self.stops.append(self.size)

    def _add_text(self, data: bytes) -> None:
        self.text.append(data)
        self.size += len(data)
