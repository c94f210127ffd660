"""`tidings demo feeds`: feeds are split into items, and each goes to the subscribers whose path selects something.

The bundled feeds are made up; `tidings demo feeds FOLDER` takes real ones, as files.
"""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import tidings
from tidings.errors import TidingsError
from tidings.xml.feed import Items

NAMESPACES = {"atom": "http://www.w3.org/2005/Atom", "dc": "http://purl.org/dc/elements/1.1/"}
SUBSCRIPTIONS = {
    "ana": '/rss/channel/item[author = "T. Johnson"]/link',
    "ben": "//item[contains(title, 'Stream')]/title",
    "cleo": "/rss/channel[language = 'en']/item[price < 20]/title",
    "dora": "/atom:feed/atom:entry[atom:category/@term = 'databases']/atom:title",
    "everyone": "//title",
}
_SHOWN, _REFUSED_SHOWN = 12, 3

_PAPERS = """<rss version="2.0"><channel><title>New papers</title><language>en</language>
<item><guid>p1</guid><title>Sampling Algorithms in a Stream Operator</title><author>T. Johnson</author>
  <author>S. Muthukrishnan</author><link>https://example.org/p1</link></item>
<item><guid>p2</guid><title>Streams and Windows, a Reader</title><author>J. Doe</author><price>18.50</price>
  <link>https://example.org/p2</link></item>
<item><guid>p3</guid><title>Trees of Paths</title><author>M. Roe</author><price>45</price></item>
</channel></rss>"""
_BLOG = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Notes</title><link href="https://example.org/notes"/>
<entry><id>n1</id><title>Why logs are enough</title><category term="databases"/></entry>
<entry><id>n2</id><title>On trains</title><category term="travel"/></entry></feed>"""
_BROKEN = "<rss version='2.0'><channel><title>Not well-formed</channel></rss>"


def run(console: Console, folder: Path | None = None, *, own_path: str | None = None) -> int:
    """Match the items of feeds, and show who gets what and why a feed was refused; returns how many items matched."""
    feeds = _read(folder) if folder is not None else {"papers": _PAPERS, "notes": _BLOG, "broken": _BROKEN}
    subscriptions = SUBSCRIPTIONS if own_path is None else {"you": own_path, **SUBSCRIPTIONS}
    matcher = tidings.Matcher(subscriptions, dialect="xpath", namespaces=NAMESPACES)
    items = Items()
    found = list(items.new(feeds.values()))
    refused = list(items.rejects)
    matches = matcher.match([item.document for item in found])
    again = sum(1 for _ in items.new(feeds.values()))
    console.print(
        f"[bold]{len(feeds):,} feeds[/]: {len(found):,} items, {len(refused):,} feeds refused; "
        f"read once more, {again} new items\n{len(subscriptions)} paths, {len(matches):,} matches"
    )
    table = Table("item", "subscription", "path", "selected", box=SIMPLE_HEAD)
    for event, subscription in matches.pairs()[:_SHOWN]:
        selected = matcher.select(found[event].document, subscription)
        table.add_row(
            escape(found[event].id[:40]),
            escape(str(subscription)),
            escape(subscriptions[str(subscription)]),
            escape(selected[0][:80] if selected else ""),
        )
    console.print(table)
    names = list(feeds)
    for reject in refused[:_REFUSED_SHOWN]:
        console.print(f"refused  {escape(names[reject.row])}: {escape(reject.reason)}")
    return int((matches.offsets[1:] > matches.offsets[:-1]).sum())


def _read(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    feeds = {str(path): path.read_bytes() for path in files if path.is_file()}
    if not feeds:
        raise TidingsError(f"there are no feeds in '{folder}'; name a file or a folder of files")
    return feeds
