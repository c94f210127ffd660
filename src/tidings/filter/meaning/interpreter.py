"""The meaning of a filter, said as plainly as can be: a walk of the tree over one record.

Slow, and obviously right: every faster way of matching is held to it, and it to Spark.
NULL is None, and logic has three values (Kleene): NULL means "not known".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from tidings.errors import EventError
from tidings.filter.meaning import operators as values
from tidings.filter.meaning.patterns import Finder
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
    XPathBoolean,
    operands_of,
)
from tidings.model.types import Path
from tidings.xml.path_meaning import read_document, selected_nodes
from tidings.xml.path_parser import parse_path


def holds(expression: Expression, record: Mapping[Path, Any]) -> bool:
    """Whether the filter is true of the record: NULL is not."""
    return evaluate(expression, record) is True


def evaluate(expression: Expression, record: Mapping[Path, Any]) -> Any:
    """The value of any expression over a record, which maps paths to values; what it lacks is NULL."""
    match expression:
        case And(operands):
            return _both(evaluate(operand, record) for operand in operands)
        case Or(operands):
            return _opposite(_both(_opposite(evaluate(operand, record)) for operand in operands))
        case Not(operand):
            return _opposite(evaluate(operand, record))
        case IsNull(operand):
            return evaluate(operand, record) is None
        case Comparison(op, left, right):
            return _compare(op, evaluate(left, record), evaluate(right, record))
        case In(operand, items):
            return _is_among(evaluate(operand, record), [evaluate(item, record) for item in items])
        case ArrayContains(array, item):
            return _strictly(lambda among, value: _is_among(value, among), record, array, item)
        case Literal(value, _):
            return value
        case Reference(path, _):
            return record.get(path)
        case Arithmetic(op, left, right, type_):
            return _strictly(lambda first, second: values.arithmetic(op, first, second, type_), record, left, right)
        case Cast(operand, type_):
            return _strictly(lambda value: values.cast(value, operand.type, type_), record, operand)
        case Negate(operand, type_):
            return _strictly(lambda value: values.negate(value, type_), record, operand)
        case Call("abs", operand, type_):
            return _strictly(lambda value: values.absolute(value, type_), record, operand)
        case Call(function, operand, _):
            return _strictly(_STRING_FUNCTIONS[function], record, operand)
        case Like(operand, pattern, escape):
            return _strictly(_finds(values.compile_like(pattern, escape)), record, operand)
        case RLike(operand, pattern):
            return _strictly(_finds(values.compile_re2(pattern)), record, operand)
        case XPathBoolean(operand, path):
            return _strictly(evaluate_path, record, operand, path)


_STRING_FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "lower": values.lower,
    "upper": values.upper,
    "length": values.length,
}


def _strictly(function: Callable[..., Any], record: Mapping[Path, Any], *operands: Expression) -> Any:
    """The function of the operands' values; NULL where one of them is NULL."""
    arguments = [evaluate(operand, record) for operand in operands]
    return None if any(argument is None for argument in arguments) else function(*arguments)


def _finds(pattern: Finder) -> Callable[[str], bool]:
    return lambda text: bool(pattern.search(text))


_parsed_path = lru_cache(maxsize=4096)(parse_path)


def evaluate_path(document: str, path: str) -> bool | None:
    """Whether a path selects anything in a document; NULL where that is none."""
    try:
        return read_document(document).holds(_parsed_path(path))
    except EventError:
        return None


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def _both(operands: Iterable[bool | None]) -> bool | None:
    seen = list(operands)
    if False in seen:
        return False
    return None if None in seen else True


def _compare(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return (left is None and right is None) if op == "<=>" else None
    order = values.compare(left, right)
    match op:
        case "=" | "<=>":
            return order == 0
        case "<":
            return order < 0
        case "<=":
            return order <= 0
        case ">":
            return order > 0
        case ">=":
            return order >= 0
    raise AssertionError(f"no such comparison: {op}")


def _is_among(value: Any, items: list[Any]) -> bool | None:
    if value is None:
        return None
    if any(item is not None and values.compare(value, item) == 0 for item in items):
        return True
    return None if None in items else False


def selects_nodes(expression: Expression) -> bool:
    """Whether a filter has paths that select anything: those under NOT do not."""
    match expression:
        case Not():
            return False
        case XPathBoolean():
            return True
    return any(map(selects_nodes, operands_of(expression)))


def selected_by(expression: Expression, record: Mapping[Path, Any]) -> list[str]:
    """What the paths of a filter select, path by path, but for those under NOT; nothing of what is no document."""
    match expression:
        case Not():
            return []
        case XPathBoolean(operand, Literal(str(path))):
            document = evaluate(operand, record)
            try:
                return selected_nodes(document, path) if isinstance(document, str) else []
            except EventError:
                return []
    return [node for operand in operands_of(expression) for node in selected_by(operand, record)]
