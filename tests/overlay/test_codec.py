from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from tidings.overlay.codec import MAX_DEPTH, Codec, MessageError
from tidings.overlay.core import Event


class Inner(NamedTuple):
    a: int
    b: tuple[str, ...]


class Outer(NamedTuple):
    inner: Inner
    event: Event
    rest: tuple[Inner, ...]
    nothing: None


CODEC = Codec([Inner, Outer])


def test_a_message_is_read_back_as_it_was() -> None:
    message = Outer(Inner(1 << 127, ("x", "é")), Event("e1", '{"a": 1}'), (Inner(-1, ()),), None)
    assert CODEC.decode(CODEC.encode(message)) == message
    assert type(CODEC.decode(CODEC.encode(message)).rest[0]) is Inner


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"Inner": [1]}', '{"Inner": [1, [], 3]}', '{"Other": []}', '{"Inner": [1, []], "Outer": []}',
     '{"Inner": 5}', "[" * 10_000, json.dumps([[[[[[[[[[[[[[1]]]]]]]]]]]]]])],
)  # fmt: skip
def test_what_is_no_message_is_refused(text: str) -> None:
    assert MAX_DEPTH < 14
    with pytest.raises(MessageError, match=r"^message: "):
        CODEC.decode(text)
