"""A stream is read the same in whatever pieces it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.client.server_sent import MAX_BUFFERED, ServerSent, ServerSentParser

STREAM = (
    b"\xef\xbb\xbf: welcome\nretry: 1500\n\n"
    b'id: 1\nevent: notification\ndata: {"a":\ndata:  "\xc3\xbc"}\n\n'
    b"data\rdata\r\r"
    b"id: 2\r\ndata:x\r\n\r\nid: bad\0\ndata: y\n\nevent: unfinished\nid: 3\n"
)
EVENTS = [
    ServerSent("notification", '{"a":\n "ü"}', "1"),
    ServerSent("message", "\n", "1"),
    ServerSent("message", "x", "2"),
    ServerSent("message", "y", "2"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20).map(sorted))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    parser = ServerSentParser()
    read = [
        event
        for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)
        for event in parser.feed(STREAM[start:end])
    ]
    assert read == EVENTS
    assert parser.retry_seconds == 1.5


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    parser = ServerSentParser()
    for _ in range(MAX_BUFFERED // 1_000_000):
        parser.feed(b"data: " + b"x" * 1_000_000 + b"\n")
    with pytest.raises(ValueError, match="more than"):
        parser.feed(b"data: " + b"x" * 1_000_000)
