"""Real feeds: those that are well-formed are matched as lxml matches them, the others are refused with a reason."""

from __future__ import annotations

import pytest
from lxml import etree

from tidings import Matcher
from tidings.testing import real_data as data

ATOM = {"atom": "http://www.w3.org/2005/Atom", "dc": "http://purl.org/dc/elements/1.1/"}
QUERIES = [
    "/rss/channel/item/link", "//item[author]", "/atom:feed/atom:entry/atom:title", "//atom:link[@rel = 'alternate']",
    "//dc:creator", "//title[contains(., 'the')]", "/rss[@version = '2.0']", "/rss/channel[not(item)]", "//*[@*]",
    "/rss/channel/item[pubDate and not(guid)]", "//item[starts-with(link, 'http://')]/title", "/*/*/*[. != '']",
    "/rss/channel[ttl > 30]", "//atom:entry[atom:author/atom:name = 'Paul Dix']", "//p:none", "/*/@version",
]  # fmt: skip


def test_real_feeds_are_matched_as_lxml_does_or_refused_with_a_reason() -> None:
    try:
        feeds = data.feeds()
    except data.DataMissing as missing:
        pytest.skip(str(missing))
    namespaces = ATOM | {"p": "urn:p"}
    documents = list(feeds.values())
    matches = Matcher(QUERIES, dialect="xpath", namespaces=namespaces).match(documents, on_error="reject")
    refused = {reject.row: reject.reason for reject in matches.rejects}
    paths = [etree.XPath(query, namespaces=namespaces) for query in QUERIES]
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    read = 0
    for row, document in enumerate(documents):
        if row in refused:
            assert not matches.of(row)
            continue
        tree = etree.fromstring(document, parser).getroottree()
        assert matches.of(row) == [number for number, path in enumerate(paths) if path(tree)], list(feeds)[row]
        read += 1
    assert read > 100
    assert all(refused.values())
