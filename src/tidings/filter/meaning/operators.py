"""What casts, arithmetic, comparison and functions do to one value: Spark's rules, said once.

The rules are those of Spark 4.3 in ANSI mode with the time zone UTC, except that where Spark
raises an error (overflow, a text that is no number, division by zero) the value is None, that
is NULL. Values have the Python forms that `tidings.model.types` lists. NULL operands are the
caller's business, but for `cast`, of which NULL is NULL.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any

from tidings.filter.meaning.patterns import compile_like, compile_re2, contained_text, like_to_re2
from tidings.filter.meaning.text_casts import (
    DAY_US,
    INT64_MAX,
    read_bigint,
    read_boolean,
    read_date,
    read_decimal,
    read_double,
    read_timestamp,
    read_timestamp_ntz,
)
from tidings.filter.tree import Value
from tidings.model.types import DataType

__all__ = [
    "absolute", "arithmetic", "cast", "compare", "compile_like", "compile_re2", "contained_text", "length",
    "like_to_re2", "lower", "negate", "upper",
]  # fmt: skip

_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)  # no sum or product of two decimals needs more
# Spark negates a decimal, also for the absolute value of a negative one, in Scala's 34 digits; longer ones are rounded.
_NEGATED = Context(prec=34, rounding=ROUND_HALF_EVEN)
_MAX_QUOTIENT_DIGITS = 39  # of the whole quotient behind a decimal remainder, in Spark

_READERS: dict[str, Callable[[str], Value]] = {
    "boolean": read_boolean,
    "bigint": read_bigint,
    "double": read_double,
    "date": read_date,
    "timestamp": read_timestamp,
    "timestamp_ntz": read_timestamp_ntz,
}


def cast(value: Any, source: DataType, target: DataType) -> Any:
    """Carry a value to another type, where the filter language does so without being asked."""
    if value is None or source == target:
        return value
    if source.name == "array" and target.name == "array":
        item_source, item_target = source.element, target.element
        assert item_source is not None
        assert item_target is not None
        return [cast(item, item_source, item_target) for item in value]
    if source.name == "string":
        return _read(value, target)
    if target.name == "decimal" and (source.is_integral or source.name == "decimal"):
        return fit_decimal(Decimal(value), target)
    if target.is_integral and source.is_integral:
        return _fit_integer(value, target)
    if target.name == "double" and source.is_numeric:
        return float(value)
    if target.name == "float" and source.is_integral:
        return _integer_to_float32(value)
    if target.name in ("timestamp", "timestamp_ntz") and source.name == "date":
        instant = value * DAY_US
        return instant if -INT64_MAX - 1 <= instant <= INT64_MAX else None
    if target.name == "timestamp" and source.name == "timestamp_ntz":
        return value
    raise AssertionError(f"no implicit cast from {source} to {target}")


def _read(text: str, target: DataType) -> Value:
    if target.name == "decimal":
        number = read_decimal(text)
        return None if number is None else fit_decimal(number, target)
    reader = _READERS.get(target.name)
    assert reader is not None, f"no implicit cast from string to {target}"
    return reader(text)


def fit_decimal(number: Decimal, target: DataType) -> Decimal | None:
    """Round half up to the scale of the type; None where the precision does not suffice."""
    if number and number.adjusted() >= target.precision:
        return None
    rounded = _EXACT.quantize(number, Decimal(1).scaleb(-target.scale))
    if len(rounded.as_tuple().digits) > target.precision:
        return None
    return rounded if rounded else rounded.copy_abs()  # there is no -0


def _fit_integer(number: int, target: DataType) -> int | None:
    least, greatest = target.integer_range
    return number if least <= number <= greatest else None


def _round_to_float32(number: float) -> float:
    return ctypes.c_float(number).value


def _integer_to_float32(number: int) -> float:
    """Round once: through a double, an integer above 2**53 would be rounded twice."""
    if abs(number) > 1 << 53:
        dropped_bits = 11  # what remains of 64 bits is exact in a double; the last bit says that some were set
        number = (number >> dropped_bits | bool(number & (1 << dropped_bits) - 1)) << dropped_bits
    return _round_to_float32(float(number))


def arithmetic(op: str, left: Any, right: Any, result: DataType) -> Any:
    """`+ - * / %` of two values that are not NULL, whose types are already the operation's."""
    if op in "/%" and right == 0:
        return None
    if result.name == "decimal":
        return _decimal_arithmetic(op, left, right, result)
    if result.is_integral:
        return _fit_integer(_integer_arithmetic(op, left, right), result)
    number = _double_arithmetic(op, left, right)
    # Twice rounded is rounded once here: a double has more than twice the digits of a float.
    return _round_to_float32(number) if result.name == "float" else number


def _integer_arithmetic(op: str, left: int, right: int) -> int:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "%":
            remainder = abs(left) % abs(right)
            return -remainder if left < 0 else remainder
    raise AssertionError(f"integers have no operation {op}")


def _double_arithmetic(op: str, left: float, right: float) -> float:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "%":
            return math.nan if math.isinf(left) else math.fmod(left, right)
    raise AssertionError(f"doubles have no operation {op}")


def _decimal_arithmetic(op: str, left: Decimal, right: Decimal, result: DataType) -> Decimal | None:
    match op:
        case "+":
            return fit_decimal(_EXACT.add(left, right), result)
        case "-":
            return fit_decimal(_EXACT.subtract(left, right), result)
        case "*":
            return fit_decimal(_EXACT.multiply(left, right), result)
        case "/":
            # Rounded twice is rounded once here: no quotient that is not a half is as near one as 200 digits.
            return fit_decimal(_EXACT.divide(left, right), result)
        case "%":
            quotient = _EXACT.divide_int(left, right).copy_abs()
            surplus_digits = quotient.adjusted() + 1 - _MAX_QUOTIENT_DIGITS
            if surplus_digits > 0 and int(quotient) % 10**surplus_digits:
                return None
            return fit_decimal(_EXACT.remainder(left, right), result)
    raise AssertionError(f"decimals have no operation {op}")


def negate(value: Any, type_: DataType) -> Any:
    """The number with the other sign; None where its type has none, as for the least integer."""
    if type_.is_integral:
        return _fit_integer(-value, type_)
    if type_.name == "decimal":
        return fit_decimal(_NEGATED.minus(value), type_)
    return -value


def absolute(value: Any, type_: DataType) -> Any:
    if type_.is_integral:
        return _fit_integer(abs(value), type_)
    if type_.name == "decimal":
        return negate(value, type_) if value < 0 else value
    return math.fabs(value)


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1 for two values of one type: NaN equals itself and is greater than every number.

    Strings are in the order of their UTF-8 bytes, which is that of their code points.
    """
    if left != left:
        return 0 if right != right else 1
    if right != right:
        return -1
    return int(left > right) - int(left < right)


def lower(text: str) -> str:
    return text.lower()


def upper(text: str) -> str:
    return text.upper()


def length(text: str) -> int:
    """In code points."""
    return len(text)
