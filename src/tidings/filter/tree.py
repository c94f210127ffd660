"""The filter as a tree: typed, names resolved, every implicit cast written out.

Nodes are plain frozen records; what they mean is said once for each judge: by the interpreter
over one record (`tidings.testing.oracle`), by the columns of a batch (`tidings.matching`), and
by Spark, which reads the same text. Some syntax is only short for other nodes and has none of
its own: `a != b` is `Not(a = b)`, `a BETWEEN x AND y` is `And(a >= x, a <= y)`, `a ILIKE p` is
`lower(a) LIKE lower(p)`, `-5` is a literal.

Every operand of a comparison has the same type: where the text compares a bigint with a
decimal, there is a `Cast`. A cast, an arithmetic operation or a function that Spark would
refuse at run time (overflow, a text that is no number, division by zero) is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar, TypeAlias
from typing import Literal as Choice

from tidings.model.types import BOOLEAN, DataType, Path

Value: TypeAlias = bool | int | float | Decimal | str | None


def _at() -> int:
    return field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value
    type: DataType
    at: int = _at()  # 1-based column in the filter's text


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to an attribute of the domain."""

    path: Path
    type: DataType
    at: int = _at()


@dataclass(frozen=True, slots=True)
class Cast:
    """An implicit cast, inserted where Spark inserts one."""

    operand: Expression
    type: DataType


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Both operands have one type (decimals: each its own), `type` is the result's."""

    op: Choice["+", "-", "*", "/", "%"]
    left: Expression
    right: Expression
    type: DataType


@dataclass(frozen=True, slots=True)
class Negate:
    operand: Expression
    type: DataType


@dataclass(frozen=True, slots=True)
class Call:
    """lower, upper: string to string; length: string to int, in characters; abs keeps the type."""

    function: Choice["lower", "upper", "length", "abs"]
    operand: Expression
    type: DataType


class Predicate:
    """What is TRUE, FALSE or NULL."""

    __slots__ = ()
    type: ClassVar[DataType] = BOOLEAN


@dataclass(frozen=True, slots=True)
class Comparison(Predicate):
    """NULL where an operand is NULL, but for `<=>`, which is never NULL."""

    op: Choice["=", "<", "<=", ">", ">=", "<=>"]
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """True where the operand equals an item; else NULL where the operand or an item is NULL."""

    operand: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Like(Predicate):
    """`%` any characters, `_` one; `escape` before either, or before itself, takes it as it is."""

    operand: Expression
    pattern: str
    escape: str = "\\"
    at: int = _at()  # of the pattern


@dataclass(frozen=True, slots=True)
class RLike(Predicate):
    """True where RE2 finds `pattern` somewhere in the operand."""

    operand: Expression
    pattern: str
    at: int = _at()  # of the pattern


@dataclass(frozen=True, slots=True)
class ArrayContains(Predicate):
    """NULL where the array or the item is NULL, or where it is not found among NULLs."""

    array: Expression
    item: Expression


@dataclass(frozen=True, slots=True)
class XPathBoolean(Predicate):
    """True where the path, a literal, selects anything in the operand, an XML document; NULL where that is none."""

    operand: Expression
    path: Expression


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    operand: Expression


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    operand: Expression


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """Two or more operands, none of them an And."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Two or more operands, none of them an Or."""

    operands: tuple[Expression, ...]


Expression: TypeAlias = (
    Literal | Reference | Cast | Arithmetic | Negate | Call
    | Comparison | In | Like | RLike | ArrayContains | XPathBoolean | IsNull | Not | And | Or
)  # fmt: skip


def operands_of(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Literal() | Reference():
            return ()
        case Arithmetic(_, left, right, _) | Comparison(_, left, right):
            return (left, right)
        case In(operand, items):
            return (operand, *items)
        case ArrayContains(array, item):
            return (array, item)
        case XPathBoolean(operand, path):
            return (operand, path)
        case And(operands) | Or(operands):
            return operands
        case Cast() | Negate() | Call() | Like() | RLike() | IsNull() | Not():
            return (expression.operand,)


def attributes_of(expression: Expression) -> Iterator[Reference]:
    """Every attribute that the expression mentions, in the order of the text."""
    pending = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, Reference):
            yield node
        pending.extend(reversed(operands_of(node)))


def mapped(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with every literal, reference and pattern changed, in the order of the text."""
    match expression:
        case Literal() | Reference():
            return change(expression)
        case Comparison(op, left, right):
            return Comparison(op, mapped(left, change), mapped(right, change))
        case Arithmetic(op, left, right, type_):
            return Arithmetic(op, mapped(left, change), mapped(right, change), type_)
        case Cast(operand, type_):
            return Cast(mapped(operand, change), type_)
        case Not(operand):
            return Not(mapped(operand, change))
        case And(operands):
            return And(tuple([mapped(operand, change) for operand in operands]))
        case Or(operands):
            return Or(tuple([mapped(operand, change) for operand in operands]))
        case Like(operand, pattern, escape, at):
            return change(Like(mapped(operand, change), pattern, escape, at))
        case RLike(operand, pattern, at):
            return change(RLike(mapped(operand, change), pattern, at))
        case Call(function, operand, type_):
            return Call(function, mapped(operand, change), type_)
        case In(operand, items):
            return In(mapped(operand, change), tuple([mapped(item, change) for item in items]))
        case Negate(operand, type_):
            return Negate(mapped(operand, change), type_)
        case IsNull(operand):
            return IsNull(mapped(operand, change))
        case ArrayContains(array, item):
            return ArrayContains(mapped(array, change), mapped(item, change))
        case XPathBoolean(operand, path):
            return XPathBoolean(mapped(operand, change), mapped(path, change))
