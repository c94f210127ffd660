from __future__ import annotations

import json
from random import Random
from typing import Annotated, Any, NamedTuple

import pytest
from tests.systems.protocols.forging import changed

from tidings.systems.protocols.effects import MAX_BODY, MAX_NAME, Event, Id, Message, Name, Within
from tidings.systems.protocols.message_codec import MAX_DEPTH, Codec, MessageError, parts_of, plain


class Inner(NamedTuple):
    a: Annotated[int, Within(-1, 1 << 127)]
    b: tuple[str, ...]


class Outer(NamedTuple):
    inner: Inner
    event: Event
    rest: tuple[Inner, ...]
    nothing: None


class Wrapped(NamedTuple):
    id: Id
    maybe: Id | None
    count: int
    share: float
    sure: bool
    name: Name
    pairs: tuple[tuple[Id, float], ...]
    payload: Message


BITS = 16
CODEC = Codec([Inner, Outer, Wrapped], BITS)
FIELDS: list[Any] = [7, None, 3, 0.5, True, "n", [[1, 2.0]], {"Inner": [1, ["x"]]}]


def test_a_message_is_read_back_as_it_was() -> None:
    message = Outer(Inner(1 << 127, ("x", "é")), Event("e1", '{"a": 1}'), (Inner(-1, ()),), None)
    assert CODEC.decode(CODEC.encode(message)) == message
    assert type(CODEC.decode(CODEC.encode(message)).rest[0]) is Inner
    wrapped = Wrapped(7, None, 3, 0.5, True, "n", ((1, 2.0),), message)
    assert CODEC.decode(CODEC.encode(wrapped)) == wrapped
    assert list(parts_of(wrapped)) == [message.inner, message.event, message.rest[0], message, wrapped]


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"Inner": [1]}', '{"Inner": [1, [], 3]}', '{"Other": []}', '{"Inner": [1, []], "Outer": []}',
     '{"Inner": 5}', "[" * 10_000, json.dumps([[[[[[[[[[[[[[1]]]]]]]]]]]]]]), "5", "null", '"Inner"', '{"_": []}',
     '{"Inner": {"a": 1, "b": []}}', "{" * 100_000],
)  # fmt: skip
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match=r"^message: "):
        CODEC.decode(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", -1), ("id", 1 << BITS), ("id", "7"), ("id", 7.0), ("id", True), ("id", None), ("id", []),
        ("maybe", -1), ("maybe", 1 << BITS), ("maybe", False), ("maybe", {}),
        ("count", -1), ("count", 1 << 63), ("count", 10**300), ("count", 1.5), ("count", True), ("count", "3"),
        ("share", "x"), ("share", None), ("share", True), ("share", 10**400), ("share", []),
        ("sure", 1), ("sure", 0), ("sure", "true"), ("sure", None),
        ("name", 1), ("name", "x" * (MAX_NAME + 1)), ("name", ["n"]), ("name", None),
        ("pairs", 1), ("pairs", [1]), ("pairs", [[1]]), ("pairs", [[1, 2.0, 3]]), ("pairs", [[1, "x"]]),
        ("pairs", [[1 << BITS, 2.0]]), ("pairs", {"0": [1, 2.0]}), ("pairs", None),
        ("payload", None), ("payload", 1), ("payload", []), ("payload", {"Nonsense": []}),
        ("payload", {"Inner": ["1", []]}), ("payload", {"Event": ["e", ""]}),
        ("payload", {"Event": ["e", "x" * (MAX_BODY + 1)]}), ("payload", {"Inner": [1, ["x" * 70_000]]}),
    ],
)  # fmt: skip
def test_a_field_that_is_not_of_its_type_is_refused_by_name(field: str, value: Any) -> None:
    assert CODEC.decode(json.dumps({"Wrapped": FIELDS}))
    fields = list(FIELDS)
    fields[Wrapped._fields.index(field)] = value
    named = rf"^message: (Wrapped\.{field}|Inner|Event|unknown|a message)"
    with pytest.raises(MessageError, match=named):
        CODEC.decode(json.dumps({"Wrapped": fields}))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    text = json.dumps({"Wrapped": FIELDS}).replace("0.5", number)
    with pytest.raises(MessageError, match=r"^message: "):
        CODEC.decode(text)


def test_messages_in_messages_are_refused_where_they_are_too_deep() -> None:
    message: Message = Inner(1, ())
    for _ in range(MAX_DEPTH):
        message = Wrapped(1, 2, 3, 4.0, False, "", (), message)
    assert CODEC.decode(CODEC.encode(message)) == message
    deeper = Wrapped(1, 2, 3, 4.0, False, "", (), message)
    with pytest.raises(MessageError, match="in each other"):
        CODEC.decode(CODEC.encode(deeper))


@pytest.mark.parametrize("seed", range(40))
def test_any_change_of_a_message_is_read_as_its_types_say_or_refused(seed: int) -> None:
    """Whatever the codec returns it writes as the same text: nothing is taken for something else."""
    random = Random(seed)
    whole = {"Wrapped": [*FIELDS[:-1], {"Outer": [FIELDS[-1], {"Event": ["e", "{}"]}, [FIELDS[-1]], None]}]}
    for _ in range(200):
        text = json.dumps(changed(random, whole))
        try:
            message = CODEC.decode(text)
        except MessageError:
            continue
        assert plain(message) == json.loads(text)
