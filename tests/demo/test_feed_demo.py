from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidings.cli import app
from tidings.demo import feed_demo as feeds
from tidings.errors import TidingsError


def shown(folder: Path | None = None, own_path: str | None = None) -> str:
    written = io.StringIO()
    feeds.run(Console(file=written, width=160, color_system=None), folder, own_path=own_path)
    return written.getvalue()


def test_the_demo_shows_who_gets_which_item_and_why_a_feed_was_refused() -> None:
    text = shown(own_path="//price")
    assert "3 feeds: 5 items, 1 feeds refused; read once more, 0 new items" in text
    for expected in (
        "you",
        "ana",
        "<link>https://example.org/p1</link>",
        "dora",
        "not well-formed",
    ):
        assert expected in text


def test_feeds_of_a_folder_are_taken_instead(tmp_path: Path) -> None:
    with pytest.raises(TidingsError, match="no feeds"):
        shown(tmp_path)
    (tmp_path / "a.xml").write_text("<rss><channel><title>A</title><item><title>x</title></item></channel></rss>")
    assert "1 feeds: 1 items, 0 feeds refused" in shown(tmp_path)


def test_the_command_shows_it_and_knows_no_other_demo() -> None:
    assert "5 items" in CliRunner().invoke(app, ["demo", "feeds"]).output
    assert CliRunner().invoke(app, ["demo", "feds"]).exit_code != 0
