"""What simulated readers ask of feeds and publication lists: pools of paths and of documents, as in `workload`.

lxml is the judge, which no node asks.
"""

from __future__ import annotations

import json
from functools import lru_cache
from random import Random

from lxml import etree

QUERIES, DOCUMENTS = 160, 120

AUTHORS = ("T. Johnson", "S. Muthukrishnan", "I. Rozenbaum", "A. Zhou")
TITLES = ("Sampling", "Streams", "Digests", "Rings")


class Feeds:
    """Paths, documents as JSON text, and whether one satisfies the other."""

    def __init__(self, filters: tuple[str, ...], documents: tuple[str, ...]) -> None:
        self.filters = filters
        self.documents = documents
        self.events = tuple(json.dumps(document) for document in documents)
        self._matches: dict[tuple[str, str], bool] = {}
        self._trees = lru_cache(DOCUMENTS)(lambda body: etree.fromstring(json.loads(body).encode()).getroottree())
        self._paths = lru_cache(QUERIES)(etree.XPath)

    def matches(self, text: str, body: str) -> bool:
        key = (text, body)
        known = self._matches.get(key)
        if known is None:
            known = self._matches[key] = bool(self._paths(text)(self._trees(body)))
        return known


@lru_cache(maxsize=1)
def feeds() -> Feeds:
    random = Random("feeds")
    return Feeds(tuple(_query(random) for _ in range(QUERIES)), tuple(_document(random) for _ in range(DOCUMENTS)))


def _document(random: Random) -> str:
    return _feed(random) if random.random() < 0.5 else _record(random)


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


def _record(random: Random) -> str:
    kind = random.choice(("article", "inproceedings"))
    parts = [f"<author>{random.choice(AUTHORS)}</author>" for _ in range(random.randint(1, 3))]
    parts.append(f"<title>{random.choice(TITLES)}</title>")
    if random.random() < 0.8:
        parts.append(f"<year>{random.randint(1995, 2007)}</year>")
    return f'<dblp><{kind} key="{random.randint(0, 5)}">{"".join(parts)}</{kind}></dblp>'


def _query(random: Random) -> str:
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
