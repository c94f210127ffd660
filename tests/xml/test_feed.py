from __future__ import annotations

import pytest

from tidings.errors import EventError
from tidings.testing import real_data as data
from tidings.xml.feed import Items, split_feed
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

RSS = """<?xml version="1.0" encoding="utf-8"?><rss version="2.0"><channel><title>News</title>
  <item><title>One</title><guid>1</guid></item>
  <item><title>Two</title><link>http://two</link></item>
  <item><title>Three</title></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Blog</title><link href="http://blog"/>
  <entry><id>a</id><title>One</title></entry><entry><id>b</id><title>Two</title></entry></feed>"""
RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
  <channel><title>Old</title></channel><item><link>http://one</link></item><item><link>http://two</link></item></rdf:RDF>"""


def test_every_item_is_a_feed_of_its_own() -> None:
    items = split_feed(RSS)
    assert [item.feed for item in items] == ["News"] * 3
    assert [item.id for item in items[:2]] == ["1", "http://two"]
    for item, title in zip(items, ("One", "Two", "Three"), strict=True):
        document = read_document(item.document)
        assert document.holds(parse_path(f"/rss[@version]/channel[title = 'News']/item[title = '{title}']"))
        assert len(document.select(parse_path("//item"))) == 1


@pytest.mark.parametrize(
    ("feed", "name", "ids"), [(ATOM, "http://blog", ["a", "b"]), (RDF, "Old", ["http://one", "http://two"])]
)
def test_atom_and_rss_1_are_feeds_too(feed: str, name: str, ids: list[str]) -> None:
    items = split_feed(feed.encode())
    assert [(item.feed, item.id) for item in items] == [(name, id_) for id_ in ids]
    assert len({item.version for item in items}) == 2


@pytest.mark.parametrize(
    ("document", "says"), [("<html/>", "neither RSS nor Atom"), ("<rss>", "not well-formed"), ("<rss/>", "neither")]
)
def test_what_is_no_feed_is_refused(document: str, says: str) -> None:
    with pytest.raises(EventError, match=says):
        split_feed(document)


def test_items_are_given_once_and_again_when_they_have_changed() -> None:
    items = Items()
    assert len(list(items.new([RSS, ATOM, "<rss>"]))) == 5
    assert list(items.new([RSS, ATOM])) == []
    assert [item.id for item in items.new([RSS.replace("<title>One", "<title>One more")])] == ["1"]
    assert [(reject.row, "well-formed" in reject.reason) for reject in items.rejects] == [(2, True)]


def test_real_feeds_are_split_or_refused_with_a_reason() -> None:
    try:
        feeds = data.feeds()
    except data.DataMissing as missing:
        pytest.skip(str(missing))
    items = Items()
    found = list(items.new(feeds.values()))
    assert len(found) > 4_000
    assert len(items.rejects) < 40
    assert all(reject.reason for reject in items.rejects)
