"""Domains and events made at random, and XML documents with paths: every type and every extreme is in them.

One `random.Random` drives it all: a seeded one, or that of Hypothesis, which can shrink (`tidings.testing.strategies`).
Small pools of values make filters that are often true. Documents have everything that the path language distinguishes:
namespaces, attributes, mixed text, comments, CDATA, numbers written in odd ways.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

from tidings.model.domain import Attribute, Domain
from tidings.model.event_values import FIRST_DAY, FIRST_MICROSECOND, LAST_DAY, LAST_MICROSECOND
from tidings.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    Path,
    array,
    decimal,
    struct,
)

DECIMALS = [
    decimal(10, 2),
    decimal(38, 10),
    decimal(38, 0),
    decimal(5, 5),
    decimal(18, 6),
    decimal(38, 38),
    decimal(1, 0),
]
SCALARS = [
    BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, *DECIMALS,
]  # fmt: skip
STRINGS = [
    "", "a", "A", "abc", "ABC", "aBc", "b", "ab\ncd", "tab\there", "it's", 'say "hi"', "back\\slash", "\\", "'", "100%",
    "a%b", "under_score", "_", "%", "\\%",
    "é", "É", "straße", "ﬀ", "İi", "ΌΣΟΣ", "日本", "😀", "a😀b", "\uffff", "nul\x00",
    "`tick`", "-- x", "/* x */", "5", "-5", "+5", " 5 ", "5.0", "1e3", "1.5", "0x1p3", "1d", "NaN", "-inf", "Infinity",
    "9223372036854775807", "9223372036854775808", "1e400", "true", "F", "yes", "0", "2020-01-01", "2020-1-1", "2020",
    "2020-02-30", "2020-01-01 12:34:56", "2020-01-01T12:34:56.123456Z", "2020-01-01 12:34:56+01:30",
    "2020-07-01 12:34:56 Europe/Paris", "2020-01-01 25:00:00",
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 0.1, 0.2, 0.1 + 0.2, 1e3, 1e15, 1e16, 1e-7, 2.0**53, 2.0**53 + 2, 2.0**63,
    1e38, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 16777217.0,
    123456.789,
]  # fmt: skip
_WHOLE = [0, 1, -1, 2, 3, 5, 7, 10, 99, 100]
_DAYS = [0, -1, 1, 18262, 18263, 18321, -141428, -141427, FIRST_DAY, LAST_DAY]
_NOON_US = 1_577_882_096_123_456  # 2020-01-01 12:34:56.123456
_MICROSECONDS = [0, -1, 1, 1_577_836_800_000_000, _NOON_US, _NOON_US - 123_456, FIRST_MICROSECOND, LAST_MICROSECOND]
_NAMES = [
    "a", "b", "c", "d", "price", "Qty", "UPPER", "mixedCase", "_u", "x1", "order", "select", "group", "value", "key",
    "Date", "Timestamp", "in", "null", "Like", "1st", "täg", "weird·name", "x`y", "dot.ted", "semi;colon", "two words",
    "quote'd", 'dou"ble', "-- no",
]  # fmt: skip


class Generator:
    """Everything that can be made at random, from one source of randomness."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def domain(self, name: str = "generated", *, size: int = 14) -> Domain:
        """A domain with a string, a bigint, a double and others of any type, nested ones and arrays."""
        types = [STRING, BIGINT, DOUBLE, *(self._type(nested=True) for _ in range(size - 3))]
        names = self.random.sample(_NAMES, size)
        return Domain(name, [Attribute(_back_quoted(given), type_) for given, type_ in zip(names, types, strict=True)])

    def _type(self, *, nested: bool) -> DataType:
        kind = self.random.random()  # towards 0 it is simplest, for Hypothesis shrinks that way
        if nested and kind > 0.85:
            fields = self.random.sample(_NAMES, self.random.randint(1, 3))
            return struct(*((name, self._type(nested=self.random.random() > 0.7)) for name in fields))
        if nested and kind > 0.65:
            return array(self.random.choice(SCALARS))
        return self.random.choice(SCALARS)

    def events(self, domain: Domain, count: int) -> list[dict[str, Any]]:
        """Events as a publisher writes them, some of whose attributes are NULL or missing."""
        return [self.event(domain) for _ in range(count)]

    def event(self, domain: Domain) -> dict[str, Any]:
        event: dict[str, Any] = {}
        for path, type_ in domain.leaves.items():
            chance = self.random.random()
            if chance < 0.05:
                continue
            value = None if chance < 0.12 else self.value(type_)
            _put(event, path, as_published(value, type_))
        return event

    def value(self, type_: DataType) -> Any:
        """A value that is not NULL, in the one Python form of its type."""
        if type_.name == "array":
            element = type_.element
            assert element is not None
            return [
                None if self.random.random() < 0.15 else self.value(element) for _ in range(self.random.randint(0, 3))
            ]
        if type_.is_integral:
            return self._integer(type_)
        return _MAKERS[type_.name](self.random, type_)

    def _integer(self, type_: DataType) -> int:
        least, greatest = type_.integer_range
        edges = [least, least + 1, greatest - 1, greatest]
        if type_ == BIGINT:
            edges += [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**31]
        pool = self.random.choice([_WHOLE, _WHOLE, edges])
        return self.random.choice(pool)


def as_published(value: Any, type_: DataType) -> Any:
    """A value as an event carries it: dates and times as Python's own."""
    if value is None:
        return None
    match type_.name:
        case "array":
            assert type_.element is not None
            return [as_published(item, type_.element) for item in value]
        case "date":
            return dt.date(1970, 1, 1) + dt.timedelta(days=value)
        case "timestamp":
            return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
        case "timestamp_ntz":
            return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)
    return value


def _put(event: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        event = event.setdefault(part, {})
    event[path[-1]] = value


def _back_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _double(random: Random, _: DataType) -> float:
    return random.choice(DOUBLES) if random.random() < 0.6 else random.randint(-40, 40) / 4


def _float(random: Random, type_: DataType) -> float:
    number = ctypes.c_float(_double(random, type_)).value
    return (
        number if random.random() < 0.9 else random.choice([3.4028234663852886e38, 1.401298464324817e-45, 16777216.0])
    )


def _decimal(random: Random, type_: DataType) -> Decimal:
    greatest = 10**type_.precision - 1
    unit = 10**type_.scale
    unscaled = random.choice(
        [
            0,
            1,
            5,
            greatest,
            greatest // 2,
            min(unit, greatest),
            random.randint(0, greatest),
            random.randint(0, 20) * unit // 4,
        ]
    )
    sign = random.choice((0, 0, 1)) if unscaled else 0
    return Decimal((sign, tuple(map(int, str(min(unscaled, greatest)))), -type_.scale))


def _string(random: Random, _: DataType) -> str:
    if random.random() < 0.8:
        return random.choice(STRINGS)
    return "".join(random.choice("abAB5%_ é") for _ in range(random.randint(0, 4)))


def _date(random: Random, _: DataType) -> int:
    return random.choice(_DAYS) if random.random() < 0.6 else 18262 + random.randint(-5, 5)


def _timestamp(random: Random, _: DataType) -> int:
    return random.choice(_MICROSECONDS) if random.random() < 0.7 else _NOON_US + random.randint(-4, 4) * 900_000_000


_MAKERS: dict[str, Callable[[Random, DataType], Any]] = {
    "boolean": lambda random, _: random.random() < 0.5,
    "double": _double,
    "float": _float,
    "decimal": _decimal,
    "string": _string,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
}


# ---------------------------------------------------------------------- XML documents and paths

NAMESPACES = {"p": "urn:p"}

_TAGS = ("a", "b", "c", "a", "b", "p:a", "d")
_ATTRIBUTES = ("i", "j", "p:i")
_VALUES = ("1", "2", "x", "-3.5", " 7 ", "xy", "")
_CONTENTS = (
    "x", "xy", "1", "2", " 2.5 ", "-3", "é", " ", "<!--c-->", "<?pi x?>", "<![CDATA[x]]>", "10", ".5", "&amp;",
)  # fmt: skip
_LITERALS = ('"x"', '"1"', '"xy"', '""', '"2"', '" 2.5 "', "'é'", '"x1"', "1", "2", "2.5", "-3", "10", "0")
_SOUGHT = ('"x"', '"xy"', '"2"', '""', '"é"', '"1210"')
_COMPARISONS = ("=", "=", "!=", "<", "<=", ">", ">=")
_MAX_DEPTH = 6


def make_document(random: Random, depth: int = 0) -> str:
    """A document, or at a depth one of its elements."""
    tag = random.choice(_TAGS)
    chosen = random.sample(_ATTRIBUTES, random.choice((0, 0, 1, 2)))
    attributes = "".join(f' {name}="{random.choice(_VALUES)}"' for name in chosen)
    if depth == 0:
        attributes += "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items())
    children = random.choice((0, 1, 2, 3)) if depth < _MAX_DEPTH else 0
    content = "".join(
        make_document(random, depth + 1) if random.random() < 0.6 else random.choice(_CONTENTS) for _ in range(children)
    )
    return f"<{tag}{attributes}>{content}</{tag}>"


def make_path(random: Random) -> str:
    """A path in the language, with prefixes as `NAMESPACES` has them."""
    path = ""
    for _ in range(random.choice((1, 2, 3, 4))):
        path += random.choice(("/", "/", "//")) + _test(random)
        for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
            path += f"[{_predicate(random, 0)}]"
    return path + _end(random)


def _test(random: Random) -> str:
    return random.choice(("a", "b", "c", "a", "b", "*", "p:a", "p:*", "d"))


def _attribute(random: Random) -> str:
    return random.choice(("@i", "@j", "@*", "@p:i"))


def _end(random: Random) -> str:
    chance = random.random()
    return "/" + _attribute(random) if chance < 0.1 else random.choice(("/", "//")) + "text()" if chance < 0.2 else ""


def _relative(random: Random, level: int) -> str:
    chance = random.random()
    if chance < 0.2:
        return "."
    if chance < 0.4:
        return _attribute(random)
    path = random.choice(("", "", ".//"))
    steps = random.choice((1, 1, 2, 3))
    for step in range(steps):
        path += _test(random)
        if level < 2 and random.random() < 0.1:
            path += f"[{_predicate(random, level + 1)}]"
        if step < steps - 1:
            path += random.choice(("/", "//"))
    return path + _end(random)


def _predicate(random: Random, level: int) -> str:
    chance = random.random()
    if chance < 0.25 or level > 2:
        return _relative(random, level)
    if chance < 0.6:
        return f"{_relative(random, level)} {random.choice(_COMPARISONS)} {random.choice(_LITERALS)}"
    if chance < 0.65:
        return f"{random.choice(_LITERALS)} {random.choice(_COMPARISONS)} {_relative(random, level)}"
    if chance < 0.8:
        function = random.choice(("contains", "starts-with"))
        return f"{function}({_relative(random, level)}, {random.choice(_SOUGHT)})"
    if chance < 0.88:
        return f"not({_predicate(random, level + 1)})"
    joined = " and " if chance < 0.94 else " or "
    return f"({_predicate(random, level + 1)}{joined}{_predicate(random, level + 1)})"
