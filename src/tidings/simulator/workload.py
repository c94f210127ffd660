"""What simulated subscribers ask for and publishers publish: a pool of filters, and a pool of events.

Systems for XML have documents and paths instead (`feeds`); lxml is their judge, which no node asks.

The pools are the same for every seed, so that thousands of simulations read each text once; a seed chooses
from them. Values are few and ranges wide, so that most events match something.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Protocol

from tidings.extras import LazyModule
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.xpath_dialect import DOMAIN as DOCUMENT_DOMAIN
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events
from tidings.model.event_json import parse_events
from tidings.systems.overlay import overlay_named
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Event
from tidings.systems.statistics import sampled_statistics, statistics_of

etree: Any = LazyModule("lxml.etree")

SYMBOLS = ("ALPHA", "BETA", "DELTA", "GAMMA", "OMEGA", "SIGMA")
FILTERS, EVENTS = 160, 120

QUERIES, DOCUMENTS = 160, 120

AUTHORS = ("T. Johnson", "S. Muthukrishnan", "I. Rozenbaum", "A. Zhou")
TITLES = ("Sampling", "Streams", "Digests", "Rings")

DOMAIN = Domain(
    "market",
    [
        Attribute("symbol", "string", allowed=SYMBOLS),
        Attribute("price", "double", min=0.0, max=100.0, precision=0.5),
        Attribute("volume", "bigint", min=0, max=1000, precision=10),
        Attribute("rating", "int", min=0, max=9, precision=1),
    ],
    indices=[("symbol",), ("symbol", "rating"), ("rating",), ("price",)],
)


class Pool(Protocol):
    """What a schedule is made of, and deliveries are judged by."""

    @property
    def content(self) -> Content: ...

    @property
    def filters(self) -> tuple[str, ...]: ...

    @property
    def events(self) -> tuple[str, ...]: ...

    def matches(self, text: str, body: str) -> bool: ...


class RecordPool:
    """A domain with filters, and events as JSON texts; nodes know both beforehand, or the events alone."""

    def __init__(
        self, domain: Domain, filters: Iterable[str], events: Iterable[str], *, filters_known: bool = True
    ) -> None:
        self.filters = tuple(filters)
        self.events = tuple(events)
        self.domain = domain
        self._filters_known = filters_known
        self._oracle = Content(domain)  # which no node asks
        self._matches: dict[tuple[str, str], bool] = {}

    @cached_property
    def table(self) -> FilterTable:
        return compile_filters(self.filters, self.domain)

    @cached_property
    def batch(self) -> EventBatch:
        return read_events([event for text in self.events for event in parse_events(text)], self.domain)

    @cached_property
    def content(self) -> Content:
        known = statistics_of(self.table, self.batch) if self._filters_known else sampled_statistics(self.batch)
        return Content(self.domain, known)

    def matches(self, text: str, body: str) -> bool:
        """The oracle: the meaning of the filter, over the event's record."""
        key = (text, body)
        known = self._matches.get(key)
        if known is None:
            record = self._oracle.record(Event("", body))
            known = self._matches[key] = self._oracle.interest(text).holds(record)
        return known


@lru_cache(maxsize=1)
def market() -> RecordPool:
    random = Random("market")
    filters = [_filter(random) for _ in range(FILTERS)]
    return RecordPool(DOMAIN, filters, [json.dumps(_event(random)) for _ in range(EVENTS)])


def workload_of(system: str) -> Pool:
    """Returns the pools for a system: of records, or of XML documents."""
    return feeds() if overlay_named(system).system.needs == "documents" else market()


def _event(random: Random) -> dict[str, Any]:
    event = {
        "symbol": random.choice(SYMBOLS),
        "price": random.randint(-10, 210) / 2,  # past both ends, too
        "volume": random.randint(0, 1000),
        "rating": random.randint(0, 9),
    }
    if random.random() < 0.15:
        event[random.choice(list(event))] = None
    return event


def _filter(random: Random) -> str:
    low, width = random.randint(0, 150) / 2, random.randint(5, 100) / 2
    at, volume = random.randint(0, 9), random.randint(0, 900)
    symbol, other = random.sample(SYMBOLS, 2)
    return random.choice(
        [
            f"symbol = '{symbol}'",
            f"symbol = '{symbol}' AND rating = {at}",
            f"symbol IN ('{symbol}', '{other}') AND price >= {low} AND price < {low + width}",
            f"price > {low} AND price < {low + width}",
            f"price BETWEEN {low} AND {low + width} AND volume < {volume}",
            f"volume > {volume} AND rating != {at}",
            f"rating IN ({at}, {(at + 3) % 10}) OR price > {low + width}",
            f"symbol = '{symbol}' AND price * 2 > {2 * low} AND volume >= {volume}",
            f"rating IS NULL OR (rating = {at} AND symbol > '{other}')",
            f"volume > price * {random.randint(5, 20)}",
        ]
    )


class Feeds:
    """Paths, documents as JSON text, and whether one satisfies the other."""

    def __init__(self, filters: tuple[str, ...], documents: tuple[str, ...]) -> None:
        self.filters = filters
        self.documents = documents
        self.events = tuple(json.dumps(document) for document in documents)
        self.content = Content(DOCUMENT_DOMAIN)
        self._matches: dict[tuple[str, str], bool] = {}
        self._trees = lru_cache(DOCUMENTS)(lambda body: etree.fromstring(json.loads(body).encode()).getroottree())
        self._paths = lru_cache(QUERIES)(lambda path: etree.XPath(path))

    def matches(self, text: str, body: str) -> bool:
        key = (text, body)
        known = self._matches.get(key)
        if known is None:
            known = self._matches[key] = bool(self._paths(text)(self._trees(body)))
        return known


@lru_cache(maxsize=1)
def feeds() -> Feeds:
    random = Random("feeds")
    return Feeds(tuple(_path_query(random) for _ in range(QUERIES)), tuple(_document(random) for _ in range(DOCUMENTS)))


def _document(random: Random) -> str:
    return _feed(random) if random.random() < 0.5 else _list_entry(random)


def _feed(random: Random) -> str:
    items = []
    for _ in range(random.randint(1, 3)):
        parts = [f"<title>{random.choice(TITLES)}</title>", f"<link>http://example.org/{random.randint(0, 9)}</link>"]
        authors = "".join(f"<author>{random.choice(AUTHORS)}</author>" for _ in range(random.randint(0, 2)))
        parts.append(f"<description>{authors}</description>" if random.random() < 0.5 else authors)
        if random.random() < 0.3:
            parts.append(f"<price>{random.randint(1, 40)}</price>")
        random.shuffle(parts)
        items.append(f"<item>{''.join(parts)}</item>")
    return f'<rss version="2.0"><channel>{"".join(items)}</channel></rss>'


def _list_entry(random: Random) -> str:
    kind = random.choice(("article", "inproceedings"))
    parts = [f"<author>{random.choice(AUTHORS)}</author>" for _ in range(random.randint(1, 3))]
    parts.append(f"<title>{random.choice(TITLES)}</title>")
    if random.random() < 0.8:
        parts.append(f"<year>{random.randint(1995, 2007)}</year>")
    return f'<dblp><{kind} key="{random.randint(0, 5)}">{"".join(parts)}</{kind}></dblp>'


def _path_query(random: Random) -> str:
    author, title = random.choice(AUTHORS), random.choice(TITLES)
    kind, year = random.choice(("article", "inproceedings")), random.randint(1995, 2007)
    return random.choice(
        [
            "/rss/channel/item",
            "/rss/channel/item/link",
            f'/rss/channel/item/title[. = "{title}"]',
            f'/rss/channel/item[author = "{author}"]/link',
            f'/rss/channel/item[description/author = "{author}"]',
            f"/rss/channel/item[price < {random.randint(5, 40)}]",
            f"/dblp/{kind}",
            f'/dblp/{kind}/author[. = "{author}"]',
            f"/dblp/{kind}[year >= {year}]/title",
            f"/dblp/*/year[. < {year}]",
            f'/dblp/{kind}[@key = "{random.randint(0, 5)}"]',
            "//author",
            f'//title[contains(., "{title[:4]}")]',
            f"//item[not(price)]/title[. = '{title}']",
            "/rss/@version",
            "/*",
            f'/rss/channel/item/description/author[. = "{author}"]',
        ]
    )
