"""Whether one value fits one type: the rule that events and declared limits are held to.

A value fits where the type can hold exactly that value. Nothing is converted silently:

    integers       a whole number in range; 1.0 fits, 1.5 does not; true and '1' are no numbers
    double         a float; an integer that a double holds exactly (not 2**53 + 1)
    float          as double, rounded to 32 bits, but not to infinity
    decimal(p,s)   an integer, a Decimal, a float by its shortest decimal form, or plain digits as
                   text, where no digit is lost
    string         text without lone surrogates
    date           a date (no datetime), or 'YYYY-MM-DD'
    timestamp      a datetime with a zone, or RFC 3339 text with an offset
    timestamp_ntz  a datetime without a zone, or such text without an offset
    binary         bytes, or base64 text, as JSON writes them
    array          a list, each element by its own type
    map            a dict or a list of (key, value); a struct inside either is a dict

A `Decimal` given for a float or double is a decimal numeral, such as JSON's `0.1`, and stands for
the nearest double. Times keep microseconds and lie in the years 0001 to 9999.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, TypeAlias

import numpy as np

from tidings.model.types import DataType

FieldValue: TypeAlias = Any  # tree.Value, or bytes, or a list or dict of values: the forms that types.py lists

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)
DAY_MICROSECONDS = 86_400_000_000
FIRST_DAY, LAST_DAY = dt.date.min.toordinal() - _EPOCH_DAY, dt.date.max.toordinal() - _EPOCH_DAY
FIRST_MICROSECOND, LAST_MICROSECOND = FIRST_DAY * DAY_MICROSECONDS, (LAST_DAY + 1) * DAY_MICROSECONDS - 1

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?P<offset>[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)
_DIGITS = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")

OUT_OF_YEARS = "the time is outside the years 0001 to 9999"
TOO_FINE = "the time has digits beyond microseconds"
NEEDS_OFFSET = "times need an offset, such as 2024-05-01T12:00:00Z or +02:00"
HAS_OFFSET = "a timestamp_ntz has no offset; leave it out, or declare the attribute as timestamp"


class Misfit(ValueError):
    """A value that its type cannot hold; the text says why."""


def fit(value: object, type_: DataType) -> FieldValue:
    """The value in the one Python form of its type; `Misfit` where the type cannot hold it. NULL fits every type."""
    if value is None:
        return None
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    return _RULES[type_.name](value, type_)


def shown(value: object) -> str:
    """A value for a message: short, and never failing."""
    try:
        text = repr(value) if isinstance(value, str | bytes) else str(value)
    except ValueError:  # an integer too long for Python to print
        return "a number of thousands of digits"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 50 else text[:49] + "…"


def kind_of(value: object) -> str:
    """What a publisher would call this value."""
    for types, kind in _KINDS:
        if isinstance(value, types):
            return kind
    return f"a {type(value).__name__}"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    ((int, float, Decimal), "a number"),
    (str, "a text"),
    (dt.datetime, "a datetime"),
    (dt.date, "a date"),
    ((bytes, bytearray, memoryview), "bytes"),
    (Mapping, "an object"),
    ((list, tuple, np.ndarray), "a list"),
)


def _wrong_kind(value: object, type_: DataType, hint: str = "") -> Misfit:
    return Misfit(f"{shown(value)} is {kind_of(value)}, which does not fit {type_}" + (f"; {hint}" if hint else ""))


def _boolean(value: object, type_: DataType) -> bool:
    if not isinstance(value, bool):
        raise _wrong_kind(value, type_)
    return value


def _integer(value: object, type_: DataType) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _wrong_kind(value, type_)
    least, greatest = type_.integer_range
    finite = value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)
    # The range before int(): 1E+999999 is whole, but nobody should write it out.
    if finite and not least <= value <= greatest:
        raise Misfit(f"{shown(value)} is out of range ({least} to {greatest}), so it does not fit {type_}")
    if not finite or value != int(value):
        raise Misfit(f"{shown(value)} is no whole number, so it does not fit {type_}")
    return int(value)


def _double(value: object, type_: DataType) -> float:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong_kind(value, type_)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except ValueError:  # a signalling NaN
        raise _wrong_kind(value, type_) from None
    if math.isinf(number) and not (isinstance(value, Decimal) and value.is_infinite()):
        raise Misfit(f"{shown(value)} is out of range, so it does not fit {type_}")
    if isinstance(value, int) and number != value:
        raise _rounded(value, type_)
    return number


def _float(value: object, type_: DataType) -> float:
    wide = _double(value, type_)
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", wide))[0]
    except OverflowError:
        raise Misfit(f"{shown(value)} is out of range, so it does not fit {type_}") from None
    if isinstance(value, int) and narrow != value:
        raise _rounded(value, type_)
    return narrow


def _rounded(value: int, type_: DataType) -> Misfit:
    return Misfit(
        f"{shown(value)} would be rounded, so it does not fit {type_}; send it as a float, or declare a wider type"
    )


def _decimal(value: object, type_: DataType) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise _wrong_kind(value, type_)
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise _wrong_kind(value, type_, "a decimal as text is plain digits, such as '8.40'")
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not exact.is_finite():
        raise Misfit(f"{shown(value)} is no number that {type_} has")
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    try:
        kept = exact.quantize(Decimal((0, (1,), -type_.scale)), context=context)
    except Inexact:
        raise Misfit(f"{shown(value)} has more digits after the point than {type_} keeps") from None
    except InvalidOperation:
        raise Misfit(f"{shown(value)} has more digits than {type_} keeps") from None
    return kept if kept else kept.copy_abs()  # no decimal has a negative zero


def _string(value: object, type_: DataType) -> str:
    if not isinstance(value, str):
        raise _wrong_kind(value, type_)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(f"{shown(value)} has a lone surrogate, which is no character") from None
    return str.__str__(value)  # a plain str, also of a subclass


def _date(value: object, type_: DataType) -> int:
    if isinstance(value, dt.datetime):
        raise _wrong_kind(value, type_, "give its .date()")
    if isinstance(value, dt.date):
        return value.toordinal() - _EPOCH_DAY
    if not isinstance(value, str):
        raise _wrong_kind(value, type_)
    written = _DATE.fullmatch(value)
    if not written:
        raise Misfit(f"{shown(value)} is no date; write it as YYYY-MM-DD")
    try:
        return dt.date(*map(int, written.groups())).toordinal() - _EPOCH_DAY
    except ValueError:
        raise Misfit(f"{shown(value)} is no day of the calendar") from None


def _timestamp(value: object, type_: DataType) -> int:
    if isinstance(value, str):
        micros, offset = _read_time(value)
        if offset is None:
            raise Misfit(f"{shown(value)}: {NEEDS_OFFSET}")
        return _in_years(micros - offset)
    if not isinstance(value, dt.datetime):
        raise _wrong_kind(value, type_)
    _check_datetime(value)
    offset_given = value.utcoffset()
    if offset_given is None:
        raise Misfit(f"{shown(value)}: {NEEDS_OFFSET}")
    return _in_years(_microseconds(value) - offset_given // _MICROSECOND)


def _timestamp_ntz(value: object, type_: DataType) -> int:
    if isinstance(value, str):
        micros, offset = _read_time(value)
        if offset is not None:
            raise Misfit(f"{shown(value)}: {HAS_OFFSET}")
        return micros
    if not isinstance(value, dt.datetime):
        raise _wrong_kind(value, type_)
    _check_datetime(value)
    if value.utcoffset() is not None:
        raise Misfit(f"{shown(value)}: {HAS_OFFSET}")
    return _microseconds(value)


def _check_datetime(value: dt.datetime) -> None:
    if value != value:  # pandas' NaT calls itself a datetime
        raise Misfit("NaT is no time; give None for NULL")
    if getattr(value, "nanosecond", 0):  # a pandas Timestamp
        raise Misfit(f"{shown(value)}: {TOO_FINE}")


def _microseconds(value: dt.datetime) -> int:
    """Of the wall clock, whatever its zone."""
    plain = dt.datetime(*value.timetuple()[:6], value.microsecond)
    return (plain - dt.datetime(1970, 1, 1)) // _MICROSECOND


def _read_time(text: str) -> tuple[int, int | None]:
    """Wall clock and offset of a written time, in microseconds."""
    written = _TIME.fullmatch(text)
    if not written:
        raise Misfit(f"{shown(text)} is no time; write it as 2024-05-01T12:00:00.123456Z")
    *clock, fraction, offset = written.groups()
    digits = (fraction or "").rstrip("0")
    if len(digits) > 6:
        raise Misfit(f"{shown(text)}: {TOO_FINE}")
    try:
        year, month, day, hour, minute, second = map(int, clock)
        value = dt.datetime(year, month, day, hour, minute, second, int(digits.ljust(6, "0")))
    except ValueError:
        raise Misfit(f"{shown(text)} is no time of the calendar") from None
    if offset is None:
        return _microseconds(value), None
    if offset in "Zz":
        return _microseconds(value), 0
    minutes = int(offset[1:3]) * 60 + int(offset[4:6])
    return _microseconds(value), (-minutes if offset[0] == "-" else minutes) * 60_000_000


def _in_years(micros: int) -> int:
    if not FIRST_MICROSECOND <= micros <= LAST_MICROSECOND:
        raise Misfit(OUT_OF_YEARS)
    return micros


def _binary(value: object, type_: DataType) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise _wrong_kind(value, type_)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Misfit(f"{shown(value)} is no base64, as binary is written in text") from None


def _array(value: object, type_: DataType) -> list[FieldValue]:
    assert type_.element is not None
    if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and value.ndim == 0):
        raise _wrong_kind(value, type_)
    return [_inside(f"element {i}", item, type_.element) for i, item in enumerate(value)]


def _map(value: object, type_: DataType) -> list[tuple[FieldValue, FieldValue]]:
    (_, key_type), (_, value_type) = type_.fields
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise _wrong_kind(value, type_)
    if any(key is None for key, _ in pairs):
        raise Misfit("a key of a map is NULL")
    return [
        (_inside("a key", key, key_type), _inside(f"the value of {shown(key)}", item, value_type))
        for key, item in pairs
    ]


def _struct(value: object, type_: DataType) -> dict[str, FieldValue]:
    if not isinstance(value, Mapping):
        raise _wrong_kind(value, type_)
    return {name: _inside(f"field '{name}'", value.get(name), field) for name, field in type_.fields}


def _inside(place: str, value: object, type_: DataType) -> FieldValue:
    try:
        return fit(value, type_)
    except Misfit as misfit:
        raise Misfit(f"{place}: {misfit}") from None


def _void(value: object, type_: DataType) -> None:
    raise _wrong_kind(value, type_)


_RULES: dict[str, Callable[[Any, DataType], FieldValue]] = {
    "boolean": _boolean, "tinyint": _integer, "smallint": _integer, "int": _integer, "bigint": _integer,
    "float": _float, "double": _double, "decimal": _decimal, "string": _string, "date": _date,
    "timestamp": _timestamp, "timestamp_ntz": _timestamp_ntz, "binary": _binary,
    "array": _array, "map": _map, "struct": _struct, "void": _void,
}  # fmt: skip


def written(value: FieldValue, type_: DataType) -> bool | int | float | str:
    """A scalar as JSON and TOML write it, so that `fit` reads the same value back."""
    match type_.name:
        case "date":
            return dt.date.fromordinal(value + _EPOCH_DAY).isoformat()
        case "timestamp" | "timestamp_ntz":
            clock = (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)).isoformat()
            return clock + "Z" if type_.name == "timestamp" else clock
        case "decimal":
            return f"{value:f}"
    assert isinstance(value, bool | int | float | str)
    return value


def python_value(scalar: Any, type_: DataType) -> FieldValue:
    """The one Python form of a value in a column of exactly `arrow_type(type_)`."""
    if not scalar.is_valid:
        return None
    match type_.name:
        case "date" | "timestamp" | "timestamp_ntz":
            return scalar.value
        case "array":
            assert type_.element is not None
            return [python_value(item, type_.element) for item in scalar.values]
        case "map":
            (_, key), (_, item) = type_.fields
            return [(python_value(pair[0], key), python_value(pair[1], item)) for pair in scalar.values]
        case "struct":
            return {name: python_value(scalar[i], field) for i, (name, field) in enumerate(type_.fields)}
    return scalar.as_py()
