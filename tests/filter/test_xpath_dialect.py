from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tidings import EventError, FilterError, Matcher, Subscription, SubscriptionError

FEED = "<rss><channel><item><author>T. Johnson</author><link>here</link></item></channel></rss>"
QUERIES = {
    "johnson": '/rss/channel/item[author = "T. Johnson"]/link',
    "items": "//item",
    "dear": "/book[price > 20]",
}


def test_paths_are_matched_against_whole_documents() -> None:
    matcher = Matcher(QUERIES, dialect="xpath")
    matches = matcher.match([FEED, b"<book><price>30</price></book>", "<a/>"])
    assert matches.pairs() == [(0, "johnson"), (0, "items"), (1, "dear")]


def test_a_list_of_paths_is_numbered() -> None:
    assert Matcher(["//a", "//b"], dialect="xpath").match(["<b/>"]).pairs() == [(0, 1)]


@pytest.mark.parametrize(
    "documents",
    [
        ["<a>é</a>", None],
        pa.array(["<a>é</a>", None]),
        pa.chunked_array([["<a>é</a>"], [None]]),
        pa.array(["<a>é</a>".encode(), None], pa.binary()),
        pa.array(["<a>é</a>", None], pa.large_string()),
    ],
)
def test_documents_come_as_lists_or_columns(documents: object) -> None:
    matches = Matcher(["/a[. = 'é']"], dialect="xpath").match(documents, on_error="reject")
    assert matches.pairs() == [(0, 0)]
    assert [(reject.row, reject.reason) for reject in matches.rejects] == [(1, "there is no document")]


def test_bytes_are_in_the_encoding_that_they_declare() -> None:
    text = "<?xml version='1.0' encoding='{}'?><a>é</a>"
    documents = [text.format(name).encode(name) for name in ("iso-8859-1", "utf-16", "utf-8", "windows-1252")]
    assert len(Matcher(["/a[. = 'é']"], dialect="xpath").match(documents)) == 4


def test_a_document_that_cannot_be_read_is_refused_or_listed_and_the_others_are_matched() -> None:
    matcher = Matcher({"a": "//a"}, dialect="xpath")
    documents = ["<a/>", "<a>", "<b/>", "<!DOCTYPE a><a/>", b"<?xml version='1.0' encoding='latin-9x'?><a/>"]
    with pytest.raises(EventError, match="row 1: the document is not well-formed"):
        matcher.match(documents)
    matches = matcher.match(documents, on_error="reject")
    assert matches.pairs() == [(0, "a")]
    assert [reject.row for reject in matches.rejects] == [1, 3, 4]


def test_one_document_alone_is_no_list_of_documents() -> None:
    with pytest.raises(EventError, match="put one into a list"):
        Matcher(["//a"], dialect="xpath").match("<a/>")


def test_prefixes_are_those_of_the_map() -> None:
    matcher = Matcher(["/atom:feed"], dialect="xpath", namespaces={"atom": "http://www.w3.org/2005/Atom"})
    assert matcher.match(['<feed xmlns="http://www.w3.org/2005/Atom"/>', "<feed/>"]).pairs() == [(0, 0)]
    matcher.upsert({0: "/atom:entry"})
    assert matcher.match(['<entry xmlns="http://www.w3.org/2005/Atom"/>']).pairs() == [(0, 0)]


def test_errors_in_paths_name_the_subscription_and_the_column_in_the_path() -> None:
    with pytest.raises(FilterError, match=r"subscription 'x'.*at column 4") as refused:
        Matcher({"y": "/a", "x": "/a[1]"}, dialect="xpath")
    assert refused.value.column == 4
    matcher = Matcher({"y": "/a"}, dialect="xpath")
    with pytest.raises(FilterError, match="at column 4"):
        matcher.upsert({"z": "/a/.."})
    assert len(matcher) == 1


def test_dialects_and_what_goes_with_them_are_checked() -> None:
    with pytest.raises(ValueError, match="dialect is"):
        Matcher([], dialect="xquery")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave the domain out"):
        Matcher([], {"a": "int"}, dialect="xpath")
    with pytest.raises(ValueError, match="a filter has its own"):
        Matcher([], namespaces={})


def test_changes_are_seen_by_the_next_match_and_merged_later() -> None:
    matcher = Matcher(QUERIES, dialect="xpath")
    before = matcher.match([FEED])
    for number in range(40):
        matcher.add({f"new{number}": f"/rss[channel/item/author = 'nobody {number}']"})
    matcher.upsert({"items": "//nothing", "links": "//link"})
    matcher.remove(["johnson"])
    assert matcher.match([FEED]).pairs() == [(0, "links")]
    matcher.settle()
    assert matcher.match([FEED]).pairs() == [(0, "links")]
    assert before.of(0) == ["johnson", "items"]
    assert matcher.stats().segments < 10
    with pytest.raises(SubscriptionError, match="no subscription 'johnson'"):
        matcher.remove(["johnson"])
    matcher.replace_all(["//author"])
    assert matcher.match([FEED]).pairs() == [(0, 0)]


def test_validity_is_that_of_positions() -> None:
    matcher = Matcher([Subscription("a", "//a", valid_from=5, valid_to=7)], dialect="xpath")
    assert matcher.match(["<a/>"] * 4, positions=[4, 5, 6, 7]).pairs() == [(1, "a"), (2, "a")]


def test_a_saved_matcher_says_the_same_and_can_be_changed(tmp_path: Path) -> None:
    matcher = Matcher(QUERIES | {"nested": "//item[author[. = 'T. Johnson']]"}, dialect="xpath")
    pairs = matcher.match([FEED]).pairs()
    matcher.save(tmp_path / "paths.tidings")
    loaded = Matcher.load(tmp_path / "paths.tidings")
    assert loaded.match([FEED]).pairs() == pairs
    loaded.upsert({"items": "//nothing"})
    assert loaded.match([FEED]).of(0) == ["johnson", "nested"]


def test_explain_says_how_far_a_path_leads() -> None:
    matcher = Matcher({"x": "/rss/channel/item[author = 'Liu']/link"}, dialect="xpath")
    shown = str(matcher.explain(FEED, "x"))
    assert "✗ does not match" in shown
    assert "no item[author = 'Liu'] below /rss/channel" in shown.replace("\n        ", " ")
    assert "selects 1 node" in str(Matcher(QUERIES, dialect="xpath").explain(FEED, "items"))
    assert [miss.subscription for miss in matcher.nearest(FEED)] == ["x"]


def test_selected_nodes_can_be_had_instead_of_the_document() -> None:
    matcher = Matcher(QUERIES, dialect="xpath")
    assert matcher.select(FEED, "johnson") == ["<link>here</link>"]
    assert matcher.select("<rss/>", "johnson") == []


def test_stats_tell_the_engine_and_its_bytes() -> None:
    matcher = Matcher(QUERIES, dialect="xpath")
    matcher.match([FEED])
    stats = matcher.stats()
    assert [engine.engine for engine in stats.engines] == ["paths"]
    assert (stats.events, stats.matched) == (1, 2)
    assert 0 < stats.bytes < 10_000


def test_threads_share_documents() -> None:
    matcher = Matcher(QUERIES, dialect="xpath", threads=2)
    documents = [FEED, "<a/>"] * 1100
    pairs = matcher.match(documents).pairs()
    assert pairs == [(i, id_) for i in range(0, 2200, 2) for id_ in ("johnson", "items")]
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(len(matcher.match(documents)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [len(pairs)] * 4
