"""RSS and Atom feeds as events: a feed is split into its items, each a document by itself.

Such a document is the feed with that one item left in it: a path that selects an item in the feed selects it there
too, and what the feed says of itself, its title or language, can be asked for along with the item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from lxml import etree

from tidings.errors import EventError
from tidings.model.event import Reject
from tidings.model.xpath.document import parse_document

_ATOM = "{http://www.w3.org/2005/Atom}"
_RSS1 = "{http://purl.org/rss/1.0/}"
_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF"


class Item(NamedTuple):
    """An item: the feed it is from, by its link or title, its id, which other versions of it have too, and its text."""

    feed: str
    id: str
    document: str

    @property
    def version(self) -> str:
        """Tells versions of an item apart."""
        return sha256(self.document.encode()).hexdigest()[:16]


def split_feed(document: str | bytes) -> list[Item]:
    """The items of a feed, in its order; raises EventError for what is no feed or cannot be read."""
    root = parse_document(document)
    parent, items, names = _parts(root)
    feed = _first_text(parent, names["link"]) or _first_text(parent, names["title"]) or root.tag
    places = [(item, item.getparent().index(item), item.getparent()) for item in items]
    for item in items:
        item.tail = None
        item.getparent().remove(item)
    split = []
    for item, place, above in places:
        above.insert(place, item)
        text = str(etree.tostring(root, encoding="unicode"))
        above.remove(item)
        own = _first_text(item, names["id"]) or _first_text(item, names["link"])
        split.append(Item(feed, own or sha256(etree.tostring(item)).hexdigest(), text))
    return split


def _parts(root: Any) -> tuple[Any, list[Any], dict[str, tuple[str, ...]]]:
    """Where a feed says what it is, its items, and the names of what both have."""
    names: dict[str, tuple[str, ...]]
    if root.tag == f"{_ATOM}feed":
        names = {"id": (f"{_ATOM}id",), "link": (f"{_ATOM}link",), "title": (f"{_ATOM}title",)}
        return root, root.findall(f"{_ATOM}entry"), names
    if root.tag == "rss" and (channel := root.find("channel")) is not None:
        return channel, root.findall("channel/item"), {"id": ("guid",), "link": ("link",), "title": ("title",)}
    if root.tag == _RDF and (channel := root.find(f"{_RSS1}channel")) is not None:
        names = {"id": (), "link": (f"{_RSS1}link",), "title": (f"{_RSS1}title",)}
        return channel, root.findall(f"{_RSS1}item"), names
    raise EventError(f"the document is neither RSS nor Atom: its root is <{etree.QName(root).localname}>")


def _first_text(element: Any, names: tuple[str, ...]) -> str | None:
    for name in names:
        for child in element.iterfind(name):
            text = (child.text or child.get("href") or "").strip()
            if text:
                return text
    return None


class Items:
    """The items of feeds that are read again and again: each version of an item is given once."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, str]] = set()
        self.rejects: list[Reject] = []  # feeds that could not be read, by their number

    def new(self, feeds: Iterable[str | bytes]) -> Iterator[Item]:
        """What these feeds have that was not seen before; what is no feed is listed in `rejects`."""
        for row, feed in enumerate(feeds):
            try:
                items = split_feed(feed)
            except EventError as error:
                self.rejects.append(Reject(row, None, error.reason))
                continue
            for item in items:
                key = (item.feed, item.id, item.version)
                if key not in self._seen:
                    self._seen.add(key)
                    yield item
