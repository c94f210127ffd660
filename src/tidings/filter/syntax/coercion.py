"""Which type two operands meet in: Spark 4.3's implicit casts in ANSI mode.

Every function returns the common type, or None if Spark refuses the pair. Numbers meet in
the narrowest type that holds both, a float and a whole number in double; text meets a number
as bigint or double; a date meets a timestamp as a timestamp; NULL takes any type.
"""

from __future__ import annotations

from tidings.filter.tree import Literal
from tidings.model import types
from tidings.model.types import MAX_PRECISION, DataType

_INTEGRAL_ORDER = ("tinyint", "smallint", "int", "bigint")
_INTEGRAL_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_DATETIME_ORDER = ("date", "timestamp_ntz", "timestamp")
_MIN_ADJUSTED_SCALE = 6  # digits after the point that arithmetic keeps when it runs out of 38


def common_type(left: DataType, right: DataType) -> DataType | None:
    """For comparisons and IN."""
    if left == right or right == types.VOID:
        return left
    if left == types.VOID:
        return right
    if left.is_numeric and right.is_numeric:
        return _common_number(left, right)
    if left.is_datetime and right.is_datetime:
        return max(left, right, key=lambda type_: _DATETIME_ORDER.index(type_.name))
    for text, other in ((left, right), (right, left)):
        if text == types.STRING:
            if other.is_integral:
                return types.BIGINT
            if other.is_fractional:
                return types.DOUBLE
            if other == types.BOOLEAN or other.is_datetime:
                return other
    return None


def common_type_of_all(operands: list[DataType]) -> DataType | None:
    """For IN: each meets what those before it have met in, from left to right."""
    result: DataType | None = types.VOID
    for type_ in operands:
        result = common_type(result, type_) if result is not None else None
    return result


def element_type(element: DataType, item: DataType) -> DataType | None:
    """For array_contains, which keeps floats as floats and does not read text as numbers."""
    if types.VOID in (element, item) or (types.STRING in (element, item) and element != item):
        return None
    if types.FLOAT in (element, item) and (element.is_integral or item.is_integral):
        return types.FLOAT
    return common_type(element, item)


def _common_number(left: DataType, right: DataType) -> DataType:
    if left.is_integral and right.is_integral:
        return max(left, right, key=lambda type_: _INTEGRAL_ORDER.index(type_.name))
    if "double" in (left.name, right.name) or "float" in (left.name, right.name):
        return types.DOUBLE
    return _wider_decimal(as_decimal(left), as_decimal(right))


def _wider_decimal(left: DataType, right: DataType) -> DataType:
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    excess = max(0, precision - MAX_PRECISION)  # costs digits after the point, never before it
    return types.decimal(precision - excess, max(0, scale - excess))


def as_decimal(type_: DataType) -> DataType:
    """The decimal that holds every value of a whole-number type; a decimal is itself."""
    return type_ if type_.name == "decimal" else types.decimal(_INTEGRAL_DIGITS[type_.name], 0)


def literal_decimal(literal: Literal) -> DataType:
    """The narrowest decimal for a whole literal that meets a decimal; Spark does not narrow a tinyint's."""
    if literal.type == types.TINYINT:
        return as_decimal(literal.type)
    return types.decimal(max(1, len(str(abs(int(literal.value or 0))))), 0)


def decimal_result(op: str, left: DataType, right: DataType) -> DataType:
    """Precision and scale of decimal arithmetic (Spark's allowPrecisionLoss rules)."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    match op:
        case "+" | "-":
            scale = max(s1, s2)
            precision = max(p1 - s1, p2 - s2) + scale + 1
        case "*":
            scale = s1 + s2
            precision = p1 + p2 + 1
        case "/":
            scale = max(_MIN_ADJUSTED_SCALE, s1 + p2 + 1)
            precision = p1 - s1 + s2 + scale
        case _:
            scale = max(s1, s2)
            precision = min(p1 - s1, p2 - s2) + scale
    if precision > MAX_PRECISION:
        whole = precision - scale
        scale = max(MAX_PRECISION - whole, min(scale, _MIN_ADJUSTED_SCALE))
        precision = MAX_PRECISION
    return types.decimal(precision, scale)
