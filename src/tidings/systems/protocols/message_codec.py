"""Messages as JSON, on the wire and in traces.

    named tuple   {"Name": [field, …]}
    tuple         [item, …]
    int, float, str, bool, null   themselves

A reader holds every field to its type: what it makes of any bytes is a message whose fields are what their annotations
say, ids in the ring, integers and texts within their ranges, floats finite. It raises `MessageError` for anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tidings.errors import TidingsError
from tidings.systems.protocols.effects import MAX_TEXT, Event, Message, RingId, Within

MAX_DEPTH = 10  # of messages in messages
COUNT = Within(0, (1 << 63) - 1)  # an int without a range of its own
TEXT = Within(0, MAX_TEXT)  # a str without one

_Read = Callable[[Any, int], Any]  # what json.loads gave and how deep it is, to a field's value


class MessageError(TidingsError):
    """A message that is not in the language of the overlay."""


class Codec:
    """Writes any message and reads those of the given kinds back, on a ring of so many bits."""

    def __init__(self, kinds: Iterable[type], bits: int) -> None:
        self._ids = Within(0, (1 << bits) - 1)
        self._kinds = {kind.__name__: kind for kind in (*kinds, Event)}
        self._fields = {name: self._fields_of(kind) for name, kind in self._kinds.items()}

    def encode(self, message: Message) -> str:
        return json.dumps(plain(message), separators=(",", ":"))

    def decode(self, text: str | bytes) -> Message:
        return self.from_plain(read_json(text))

    def from_plain(self, read: Any, depth: int = 0) -> Message:
        """The message of any kind that this is."""
        if not isinstance(read, dict) or len(read) != 1:
            raise MessageError("message: a message is an object with one key, its name")
        (name,) = read
        if name not in self._kinds:
            raise MessageError(f"message: unknown: {name[:40]!r}")
        return self._tuple_of(name, read, depth)

    def _tuple_of(self, name: str, read: Any, depth: int) -> Message:
        """The message of this name."""
        if depth > MAX_DEPTH:
            raise MessageError(f"message: more than {MAX_DEPTH} messages in each other")
        expected = self._fields[name]
        values = read.get(name) if isinstance(read, dict) and len(read) == 1 else None
        if not isinstance(values, list) or len(values) != len(expected):
            raise MessageError(f"message: {name} is an object with its name and a list of {len(expected)} fields")
        kind = self._kinds[name]
        try:
            return kind(*(field(value, depth) for field, value in zip(expected.values(), values, strict=True)))
        except _Misfit as misfit:
            field = next(name for name, field in expected.items() if field is misfit.read)
            raise MessageError(f"message: {name}.{field} {misfit}") from None

    # What reads a field, by its annotation

    def _fields_of(self, kind: type) -> dict[str, _Read]:
        hints = get_type_hints(kind, include_extras=True)
        return {name: _named(self._reader(hints[name])) for name in kind._fields}  # type: ignore[attr-defined]

    def _reader(self, hint: Any) -> _Read:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            mark = arguments[1]
            return _scalar_reader(arguments[0], self._ids if isinstance(mark, RingId) else mark)
        if origin in (Union, UnionType):
            (present,) = (one for one in arguments if one is not NoneType)
            return partial(_optional, self._reader(present))
        if origin is tuple and arguments[-1] is Ellipsis:
            return partial(_items, self._reader(arguments[0]))
        if origin is tuple:
            return partial(_each, tuple(self._reader(one) for one in arguments))
        if hint is Any:
            return lambda value, depth: self.from_plain(value, depth + 1)
        if hasattr(hint, "_fields"):
            assert hint.__name__ in self._kinds, f"{hint.__name__} is part of a message, and not among the kinds"
            return lambda value, depth: self._tuple_of(hint.__name__, value, depth + 1)
        return _scalar_reader(hint, TEXT if hint is str else COUNT)


class _Misfit(Exception):
    """A value that does not fit; `read` becomes the reader of the whole field."""

    read: _Read | None = None


def _named(read: _Read) -> _Read:
    """A field's reader, which a misfit can be told by."""

    def field(value: Any, depth: int) -> Any:
        try:
            return read(value, depth)
        except _Misfit as misfit:
            misfit.read = field
            raise

    return field


def _scalar_reader(kind: Any, range_: Within) -> _Read:
    if kind is int:
        return partial(_integer, range_)
    if kind is str:
        return partial(_text, range_)
    if kind in (float, bool, NoneType):
        return {float: _number, bool: _truth, NoneType: _nothing}[kind]
    raise AssertionError(f"{kind!r} cannot be the type of a message's field")


def _integer(range_: Within, value: Any, depth: int) -> int:
    if type(value) is not int:
        raise _Misfit(f"is an integer, not {_shown(value)}")
    if not range_.least <= value <= range_.most:
        raise _Misfit(f"is out of range: {_shown(value)}")
    return value


def _text(range_: Within, value: Any, depth: int) -> str:
    if not isinstance(value, str):
        raise _Misfit(f"is a text, not {_shown(value)}")
    if not range_.least <= len(value) <= range_.most:
        raise _Misfit(f"has {len(value):,} characters; from {range_.least} to {range_.most:,} are allowed")
    return value


def _number(value: Any, depth: int) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e300 or not isfinite(value):
        raise _Misfit(f"is a finite number, not {_shown(value)}")
    return value  # type: ignore[no-any-return]


def _truth(value: Any, depth: int) -> bool:
    if not isinstance(value, bool):
        raise _Misfit(f"is true or false, not {_shown(value)}")
    return value


def _nothing(value: Any, depth: int) -> None:
    if value is not None:
        raise _Misfit(f"is null, not {_shown(value)}")


def _optional(read: _Read, value: Any, depth: int) -> Any:
    return None if value is None else read(value, depth)


def _items(read: _Read, value: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _Misfit(f"is a list, not {_shown(value)}")
    return tuple([read(item, depth) for item in value])


def _each(reads: tuple[_Read, ...], value: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) != len(reads):
        raise _Misfit(f"is a list of {len(reads)}, not {_shown(value)}")
    return tuple([read(item, depth) for read, item in zip(reads, value, strict=True)])


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length():,} bits"
    return (
        f"{type(value).__name__} {repr(value)[:40]}" if isinstance(value, int | float | str) else type(value).__name__
    )


def read_json(text: str | bytes) -> Any:
    """What the JSON says; raises MessageError for what is none, with NaN and Infinity, which JSON does not have."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"message: no JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def plain(value: Any) -> Any:
    """A message in JSON's own types."""
    if isinstance(value, tuple):
        items = [plain(item) for item in value]
        return {type(value).__name__: items} if hasattr(value, "_fields") else items
    assert value is None or isinstance(value, int | float | str), f"{value!r} cannot be part of a message"
    return value


def parts_of(message: Message) -> Iterable[Message]:
    """The message and every message in it, the innermost first."""
    for item in message:
        if isinstance(item, tuple):
            yield from parts_of(item)
    if hasattr(message, "_fields"):
        yield message
