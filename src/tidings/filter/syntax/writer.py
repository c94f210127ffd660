"""A filter's tree written out as Spark SQL again.

Parsing what `to_sql` writes gives the same tree: literals carry the suffix or keyword of their
type, parentheses stand only where the tree needs them, and an implicit cast is written as its
operand, since the parser puts it back. (The parser has cast literals already, so it may put back a
decimal with fewer digits. That says the same, but where decimals meet that do not fit 38 digits.)
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

import numpy as np

from tidings.filter.tree import (
    And,
    Arithmetic,
    ArrayContains,
    Call,
    Cast,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Reference,
    RLike,
    Value,
    XPathBoolean,
)
from tidings.model.types import BOOLEAN, DataType, Path

# How tightly each kind of expression binds; an operand that binds less than its place asks for is parenthesised.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(8)

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that mean something else where an attribute's name could stand, here or in Spark.
_RESERVED = frozenset(
    """
    all and any array between case cast date distinct div else end escape exists extract false from ilike in interval
    is like map not null or regexp rlike select some struct then timestamp timestamp_ltz timestamp_ntz true when where
    x xor
    """.split()
)
_ESCAPES = {"'": "''", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_INTEGER_SUFFIX = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}


def to_sql(expression: Expression, *, typed: bool = True) -> str:
    """The expression as the text of a filter.

    Without `typed`, numbers lack the suffix that gives their type (`8.3`, not `8.3D`): for reading.
    """
    if expression == Literal(None, BOOLEAN):
        return "NULL LIKE NULL"  # a bare NULL has no type, so is no condition
    return _write(expression, _OR, typed)


def name_to_sql(path: Path) -> str:
    """An attribute's name as a filter writes it: dotted, back-quoted where it must be."""
    return ".".join(_name_part(part) for part in path)


def literal_to_sql(value: Value, type_: DataType, *, typed: bool = True) -> str:
    """A value of that type as a literal that Spark reads back as the same value and type."""
    if value is None:
        return "NULL"
    match type_.name:
        case "boolean":
            return "true" if value else "false"
        case "tinyint" | "smallint" | "int" | "bigint":
            beyond_int = type_.name == "bigint" and not -(2**31) <= int(value) < 2**31
            return f"{value}" + ("" if beyond_int or not typed else _INTEGER_SUFFIX[type_.name])
        case "float" | "double":
            return _float_to_sql(float(value), type_.name == "float", typed)
        case "decimal":
            assert isinstance(value, Decimal)
            return f"{value:f}" + ("" if type_.scale or not typed else "BD")
        case "string":
            return _quoted(str(value))
        case "date":
            return f"DATE '{_date(int(value))}'"
        case "timestamp" | "timestamp_ntz":
            return f"{type_.name.upper()} '{_time(int(value))}'"
    raise AssertionError(f"there is no literal of type {type_}")


def _write(expression: Expression, place: int, typed: bool) -> str:
    text, binding = _parts(expression, typed)
    return text if binding >= place else f"({text})"


def _parts(expression: Expression, typed: bool) -> tuple[str, int]:
    """The text of an expression, and how tightly it binds."""
    match expression:
        case Literal(value, type_):
            text = literal_to_sql(value, type_, typed=typed)
            return text, _UNARY if text.startswith("-") else _PRIMARY
        case Reference(path):
            return name_to_sql(path), _PRIMARY
        case Cast(operand):
            return _parts(operand, typed)
        case Negate(Literal() as operand):  # in parentheses, or the sign would be the literal's
            return f"-({_write(operand, _OR, typed)})", _UNARY
        case Negate(operand):
            return f"-{_write(operand, _PRIMARY, typed)}", _UNARY  # never `--`, which opens a comment
        case Arithmetic(op, left, right):
            level = _SUM if op in "+-" else _PRODUCT
            return f"{_write(left, level, typed)} {op} {_write(right, level + 1, typed)}", level
        case Call(function, operand):
            return f"{function}({_write(operand, _OR, typed)})", _PRIMARY
        case ArrayContains(array, item):
            return f"array_contains({_write(array, _OR, typed)}, {_write(item, _OR, typed)})", _PRIMARY
        case XPathBoolean(operand, path):
            return f"xpath_boolean({_write(operand, _OR, typed)}, {_write(path, _OR, typed)})", _PRIMARY
        case And(operands):
            return " AND ".join(_write(operand, _NOT, typed) for operand in operands), _AND
        case Or(operands):
            return " OR ".join(_write(operand, _AND, typed) for operand in operands), _OR
        case Not(Comparison("=", left, right)):
            return f"{_write(left, _SUM, typed)} != {_write(right, _SUM, typed)}", _PREDICATE
        case Not(In() | Like() | RLike() | IsNull() as operand):
            return _predicate(operand, negated=True, typed=typed), _PREDICATE
        case Not(operand):
            return f"NOT {_write(operand, _NOT, typed)}", _NOT
        case Comparison(op, left, right):
            return f"{_write(left, _SUM, typed)} {op} {_write(right, _SUM, typed)}", _PREDICATE
        case In() | Like() | RLike() | IsNull():
            return _predicate(expression, negated=False, typed=typed), _PREDICATE


def _predicate(predicate: In | Like | RLike | IsNull, *, negated: bool, typed: bool) -> str:
    """A predicate that takes its NOT in the middle."""
    operand = _write(predicate.operand, _SUM, typed)
    word = "NOT " if negated else ""
    match predicate:
        case In(_, items):
            return f"{operand} {word}IN ({', '.join(_write(item, _SUM, typed) for item in items)})"
        case Like(_, pattern, escape):
            suffix = "" if escape == "\\" else f" ESCAPE {_quoted(escape)}"
            return f"{operand} {word}LIKE {_quoted(pattern)}{suffix}"
        case RLike(_, pattern):
            return f"{operand} {word}RLIKE {_quoted(pattern)}"
        case IsNull():
            return f"{operand} IS {word}NULL"


def _name_part(part: str) -> str:
    if _PLAIN_NAME.fullmatch(part) and part.lower() not in _RESERVED:
        return part
    return "`" + part.replace("`", "``") + "`"


def _quoted(text: str) -> str:
    # Control characters are escaped so that printing a filter never drives the reader's terminal.
    return "'" + "".join(_ESCAPES.get(c, c if c.isprintable() else _unicode_escape(c)) for c in text) + "'"


def _unicode_escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _float_to_sql(value: float, single: bool, typed: bool) -> str:
    if math.isfinite(value):
        digits = str(np.float32(value)) if single else repr(value)
        return digits.replace("e+", "E").replace("e", "E") + (("F" if single else "D") if typed else "")
    # No literal has these values: Spark casts the text to the type that it is compared with.
    return "'NaN'" if math.isnan(value) else "'Infinity'" if value > 0 else "'-Infinity'"


def _date(days: int) -> str:
    sign, year, rest = re.fullmatch(r"(-?)(\d+)(-.*)", str(np.datetime64(days, "D"))).groups()  # type: ignore[union-attr]
    return f"{sign}{year:0>4}{rest}"


def _time(microseconds: int) -> str:
    """As in a literal: a date, a space, a time of day with as many digits as there are."""
    days, within = divmod(microseconds, 86_400_000_000)
    seconds, fraction = divmod(within, 1_000_000)
    text = f"{_date(days)} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:06}".rstrip("0") if fraction else "")
