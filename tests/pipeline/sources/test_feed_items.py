"""Feeds on Spark: items are events, each version of one once, and what is no feed is told with a reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.waiting import LAST_RESORT_SECONDS

from tidings import pipeline
from tidings.pipeline.sinks.stream_sinks import ParquetSink
from tidings.pipeline.sources.feed_items import FeedEvents, feed_items

pytestmark = pytest.mark.spark

RSS = """<rss version="2.0"><channel><title>Papers</title><language>en</language>
<item><guid>p1</guid><title>Streams</title><author>Liu</author></item>
<item><guid>p2</guid><title>{0}</title></item></channel></rss>"""
ATOM = """<?xml version="1.0" encoding="iso-8859-1"?><feed xmlns="http://www.w3.org/2005/Atom"><title>Notes</title>
<entry><id>n1</id><title>Gr\u00fc\u00dfe</title></entry></feed>"""
SUBSCRIPTIONS = {
    "liu": 'xpath_boolean(document, \'/rss/channel[language = "en"]/item[author = "Liu"]\')',
    "papers": "feed = 'Papers' AND xpath_boolean(document, '//item/title')",
    "notes": "xpath_boolean(document, '//a:entry[a:title = \"Gr\u00fc\u00dfe\"]', map('a', 'http://www.w3.org/2005/Atom'))",
}


def put(folder: Path, name: str, text: str, encoding: str = "utf-8") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(text.encode(encoding))


def test_feeds_are_split_into_items_once_each_and_what_is_not_one_has_a_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "fetched"
    put(folder, "1.xml", RSS.format("Windows"))
    put(folder, "2.xml", RSS.format("Windows, again"))
    put(folder, "3.xml", ATOM, "iso-8859-1")
    put(folder, "4.xml", "<rss><channel>")
    put(folder, "5.xml", "<!DOCTYPE rss><rss><channel/></rss>")
    put(folder, "6.xml", "<html/>")
    files = spark.read.format("binaryFile").load(str(folder))
    rows = files.transform(feed_items).collect()
    items = sorted((row.feed, row.item, row.rejected) for row in rows if row.document is not None)
    assert items == [("Notes", "n1", None), ("Papers", "p1", None), ("Papers", "p2", None), ("Papers", "p2", None)]
    reasons = sorted(row.rejected for row in rows if row.document is None)
    assert ["document type" in reasons[0], "neither RSS nor Atom" in reasons[1], "not well-formed" in reasons[2]] == (
        [True] * 3
    )
    again = files.union(files).transform(feed_items)
    assert again.count() == len(rows)


@pytest.mark.parametrize("remember", [None, pytest.param("30 days", marks=pytest.mark.long)])
def test_a_stream_of_feeds_delivers_each_version_of_an_item_once_over_restarts(
    spark: SparkSession, tmp_path: Path, remember: str | None
) -> None:
    folder = tmp_path / "fetched"
    table = pa.table({"id": list(SUBSCRIPTIONS), "filter": list(SUBSCRIPTIONS.values())})
    subscriptions = spark.createDataFrame(table)

    def fetched() -> list[tuple[str | None, list[str] | None]]:
        source = FeedEvents(str(folder), remember=remember)
        with pipeline.stream(
            source, subscriptions, ParquetSink(tmp_path / "out"), checkpoint=tmp_path / "query", trigger="now"
        ) as running:
            assert running.wait(LAST_RESORT_SECONDS)
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        told = [(row.item, None if row.subscriptions is None else sorted(row.subscriptions)) for row in rows]
        return sorted(told, key=repr)

    put(folder, "1.xml", RSS.format("Windows"))
    put(folder, "2.xml", ATOM, "iso-8859-1")
    put(folder, "3.xml", "<rss>")
    first = [("n1", ["notes"]), ("p1", ["liu", "papers"]), ("p2", ["papers"]), (None, None)]
    assert fetched() == first
    put(folder, "4.xml", RSS.format("Windows, again"))
    put(folder, "5.xml", ATOM, "iso-8859-1")
    assert fetched() == sorted([*first, ("p2", ["papers"])], key=repr)
