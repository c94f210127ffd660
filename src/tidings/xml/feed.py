"""RSS and Atom feeds as events: a feed is split into its items, each a document by itself.

Such a document is the feed with that one item left in it: a path that selects an item in the feed selects it there
too, and what the feed says of itself, its title or language, can be asked for along with the item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from tidings.errors import EventError
from tidings.extras import LazyModule
from tidings.model.event import Reject
from tidings.xml.document import MAX_BYTES, parse_document

etree: Any = LazyModule("lxml.etree")

MAX_SPLIT_ITEMS = 100_000
MAX_TAGS = 500_000  # of a feed, counted before a tree is made of it
MAX_SPLIT_BYTES = 4 * MAX_BYTES  # of all items of a feed, each with what the feed says of itself

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


class FeedSizeError(EventError):
    """A feed whose items come to more than is taken: which limit that is, and its value."""

    def __init__(self, reason: str, limit: str, most: int) -> None:
        super().__init__(reason)
        self.limit = limit
        self.most = most


def split_feed(
    document: str | bytes, *, max_items: int = MAX_SPLIT_ITEMS, max_bytes: int = MAX_SPLIT_BYTES
) -> list[Item]:
    """The items of a feed, in its order; raises EventError for what is no feed or cannot be read.

    Every item repeats what the feed says of itself, so that a short feed can stand for a huge list. Raises
    FeedSizeError for more than `max_items`, and as soon as the items made so far have more than `max_bytes`.
    """
    tags = document.count("<") if isinstance(document, str) else document.count(b"<")
    if tags > MAX_TAGS:
        raise FeedSizeError(f"the feed has {tags:,} tags, and {MAX_TAGS:,} are the most", "max_feed_tags", MAX_TAGS)
    root = parse_document(document)
    parent, items, names = _parts(root)
    feed = _first_text(parent, names["link"]) or _first_text(parent, names["title"]) or root.tag
    if len(items) > max_items:
        raise FeedSizeError(
            f"the feed has {len(items):,} items, and {max_items:,} are the most", "max_feed_items", max_items
        )
    split: list[Item] = []
    size = 0
    for item, above, place in _removed(items):
        above.insert(place, item)
        text = str(etree.tostring(root, encoding="unicode"))
        above.remove(item)
        size += len(text.encode())
        if size > max_bytes:
            raise FeedSizeError(
                f"the first {len(split) + 1:,} of the feed's {len(items):,} items, each with what the feed says of "
                f"itself, have more than {max_bytes:,} bytes, which are the most",
                "max_feed_bytes",
                max_bytes,
            )
        own = _first_text(item, names["id"]) or _first_text(item, names["link"])
        split.append(Item(feed, own or sha256(etree.tostring(item)).hexdigest(), text))
    return split


def _removed(items: list[Any]) -> list[tuple[Any, Any, int]]:
    """Takes the items out of a feed; returns each with its parent and its place among what is left there."""
    wanted = set(items)
    places = []
    for above in dict.fromkeys(item.getparent() for item in items):
        place = 0
        for child in list(above):
            if child in wanted:
                places.append((child, above, place))
                child.tail = None
                above.remove(child)
            else:
                place += 1
    return places


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
