"""From a filter's text to its typed tree.

    lex (literals out) ─► shape ─► sqlglot ─► syntax tree ─► names and types resolved ─► tree

The parse of a shape is remembered; resolving it against a domain and a set of literals is not.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

import sqlglot
import sqlglot.errors
from sqlglot import exp

from tidings.errors import DomainError, FilterError, did_you_mean
from tidings.filter.cost import CostCounter
from tidings.filter.meaning.operators import cast
from tidings.filter.meaning.patterns import check_rlike, like_to_re2
from tidings.filter.syntax import coercion as coerce
from tidings.filter.syntax.lexer import (
    FUNCTIONS,
    INSTEAD,
    KEYWORDS,
    MAX_LEVELS,
    PREFIX_MAP,
    Lexed,
    lex,
    shortened,
    subquery_column,
    too_deep,
)
from tidings.filter.syntax.path_arguments import prefixes_of, read_path
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
from tidings.model import types
from tidings.model.domain import Domain
from tidings.model.types import DataType

_SPARK = sqlglot.Dialect.get_or_raise("spark")


class _Parser(threading.local):
    """sqlglot's tokenizer and parser, one of each to a thread: making them takes as long as their work on a filter."""

    def __init__(self) -> None:
        self.tokenizer = _SPARK.tokenizer()
        self.parser = _SPARK.parser()

    def parse(self, shape: str) -> exp.Expr | None:
        (parsed,) = self.parser.parse_into(exp.Condition, self.tokenizer.tokenize(shape), shape)
        return parsed


_parser = _Parser()
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.NullSafeEQ: "<=>",
}  # fmt: skip
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_CALLS: dict[type[exp.Expr], str] = {exp.Lower: "lower", exp.Upper: "upper", exp.Length: "length", exp.Abs: "abs"}
_PATTERNS: dict[type[exp.Expr], str] = {exp.Like: "LIKE", exp.ILike: "ILIKE", exp.RegexpLike: "RLIKE"}
# What the parser may say of a node: anything else is syntax that this module does not know.
_ARGUMENTS = frozenset(("this", "expression", "expressions", "low", "high", "negate", "table", "db", "catalog"))
_ARGUMENTS |= {"typed", "safe"}  # of a division, which `/` in Spark's dialect always carries
# Spark has one level for all comparisons, sqlglot several: without parentheses they read
# `a = b > c` differently, so nested ones are refused.
_PREDICATES = (
    *_COMPARISONS, exp.NEQ, exp.Between, exp.In, exp.Like, exp.ILike, exp.RegexpLike, exp.Is, exp.Not, exp.Escape,
    exp.And, exp.Or,
)  # fmt: skip


def parse_filter(text: str, domain: Domain) -> Expression:
    """The typed tree of a filter over a domain; raises FilterError with the place and a hint."""
    if not isinstance(text, str):
        raise FilterError(f"a filter is text, not {type(text).__name__}")
    try:
        return resolve(lex(text), domain)
    except FilterError:
        if (column := subquery_column(text)) is None:
            raise
    hint = "a filter sees one event: compare its attributes with values"
    raise FilterError("a subquery is not in the language", column=column, hint=hint)


def resolve(lexed: Lexed, domain: Domain) -> Expression:
    """The typed tree of a filter that is already in tokens."""
    return _Resolver(lexed, domain).condition_of_filter(_parse_shape_of(lexed))


def _parse_shape_of(lexed: Lexed) -> exp.Expr:
    parsed = parse_shape(lexed.shape)
    if isinstance(parsed, exp.Expr):
        return parsed
    description, end = parsed
    token = lexed.token_at(end)
    if token.kind == "name" and token is not lexed.tokens[0]:
        before = lexed.tokens[lexed.tokens.index(token) - 1]
        for word in (token, before, lexed.tokens[0]):
            if word.written.upper() in INSTEAD:
                hint = INSTEAD[word.written.upper()]
                raise FilterError(f"'{word.written}' is not in the language", column=word.at, hint=hint)
    elif "Required" in description:
        raise FilterError(f"something is missing after '{token.written}'", column=token.at)
    hint = "is an operator missing before it?" if token.kind in ("name", "literal") else ""
    raise FilterError(f"unexpected '{shortened(token.written)}'", column=token.at, hint=hint)


@lru_cache(maxsize=2048)
def parse_shape(shape: str) -> exp.Expr | tuple[str, int]:
    """sqlglot's syntax tree of a shape, or its complaint and the offset of the last character read."""
    try:
        parsed = _parser.parse(shape)
        assert parsed is not None
        return parsed
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        return str(first.get("description") or error), int(first.get("col") or 1) - 1


class _Resolver:
    """Turns syntax into typed nodes: one method for each kind of syntax."""

    def __init__(self, lexed: Lexed, domain: Domain) -> None:
        self._lexed = lexed
        self._domain = domain
        self._level = 0
        self._costs = CostCounter()

    def condition_of_filter(self, syntax: exp.Expr) -> Expression:
        expression = self.expression(syntax)
        if expression.type != types.BOOLEAN:
            what = f"a filter is a condition, and this is of type {expression.type}"
            raise FilterError(what, column=_column(expression), hint="compare it with something, as price > 8.30")
        return self._affordable(expression)

    def expression(self, syntax: exp.Expr) -> Expression:
        while isinstance(syntax, exp.Paren):
            syntax = syntax.this
        self._level += 1
        if self._level > MAX_LEVELS:  # the lexer bounds parentheses; this bounds chains of operators
            raise too_deep(self._column_of(syntax))
        handler = _HANDLERS.get(type(syntax))
        if handler is None or (not syntax.args.keys() <= _ARGUMENTS and _says_more(syntax)):
            hint = f"the functions are {', '.join(sorted(FUNCTIONS))}" if isinstance(syntax, exp.Func) else ""
            raise FilterError("this is not in the filter language", column=self._column_of(syntax), hint=hint)
        result = handler(self, syntax)
        self._level -= 1
        return result

    # ------------------------------------------------------------------ leaves

    def _literal(self, syntax: exp.Expr) -> Expression:
        return self._lexed.literals[int(syntax.name[1:])].value()

    def _null(self, syntax: exp.Expr) -> Expression:
        return Literal(None, types.VOID)

    def _boolean(self, syntax: exp.Expr) -> Expression:
        return Literal(bool(syntax.this), types.BOOLEAN)

    def _reference(self, syntax: exp.Expr) -> Expression:
        alone = type(syntax) is exp.Column and len(syntax.args) == 1
        identifiers: list[exp.Expr] = [syntax.this] if alone else syntax.parts  # type: ignore[attr-defined]
        if not alone and not isinstance(_before_points(syntax), exp.Column):
            raise FilterError("unexpected '.' after what is no attribute", column=self._column_of(syntax))
        for identifier in identifiers:
            if not isinstance(identifier, exp.Identifier):
                raise FilterError("unexpected '*'", column=self._column_of(syntax), hint="name an attribute")
            if identifier.this.upper() in KEYWORDS:
                hint = f"write `{identifier.this}` if it is a name"
                raise FilterError(f"unexpected '{identifier.this}'", column=self._column_of(syntax), hint=hint)
        names = [self._lexed.names[int(identifier.this[1:])] for identifier in identifiers]
        parts, column = tuple([name for name, _ in names]), names[0][1]
        name = shortened(".".join(parts))
        try:
            found = self._domain.find(parts)
        except DomainError as error:
            raise FilterError(str(error), column=column) from None
        if found is None:
            hint = did_you_mean(name, self._domain.names)
            raise FilterError(f"unknown attribute '{name}'", column=column, hint=hint)
        path, type_ = found
        if not type_.is_filterable:
            hint = f"name a field of it, as {name}.{type_.fields[0][0]}" if type_.name == "struct" else ""
            reason = f"attribute '{name}' of type {type_} is carried along, not filtered"
            raise FilterError(reason, column=column, hint=hint)
        return Reference(path, type_, column)

    # ------------------------------------------------------------------ logic

    def _not(self, syntax: exp.Expr) -> Expression:
        return Not(self._condition(syntax.this))

    def _chain(self, syntax: exp.Expr) -> Expression:
        """AND and OR: thousands in a row are one node, without recursion."""
        kind = type(syntax)
        node: type[And] | type[Or] = And if kind is exp.And else Or
        operands: list[Expression] = []
        pending = [syntax]
        while pending:
            part = pending.pop()
            while isinstance(part, exp.Paren):
                part = part.this
            if isinstance(part, kind):
                pending += [part.args["expression"], part.this]
                continue
            operand = self._condition(part)
            operands += operand.operands if isinstance(operand, node) else (operand,)  # BETWEEN is an And
        return node(tuple(operands))

    def _condition(self, syntax: exp.Expr) -> Expression:
        """An operand of AND, OR and NOT: Spark reads NULL and text as booleans here."""
        expression = self.expression(syntax)
        type_ = expression.type
        if type_ == types.BOOLEAN:
            return expression
        if type_ in (types.VOID, types.STRING):
            return self._cast(expression, types.BOOLEAN)
        raise FilterError(
            f"AND, OR and NOT take conditions, and this is of type {type_}",
            column=_column(expression) or self._column_of(syntax),
            hint="compare it with something",
        )

    # ------------------------------------------------------------------ predicates

    def _operand(self, syntax: exp.Expr) -> Expression:
        if isinstance(syntax, _PREDICATES):
            raise FilterError(
                "a comparison inside a comparison",
                column=self._column_of(syntax),
                hint="put the inner one in parentheses",
            )
        return self.expression(syntax)

    def _comparison(self, syntax: exp.Expr) -> Expression:
        left, right = self._operand(syntax.this), self._operand(syntax.args["expression"])
        return self._compare(_COMPARISONS[type(syntax)], left, right)

    def _compare(self, op: str, left: Expression, right: Expression) -> Expression:
        if op in _FLIPPED:
            for whole, literal, order in ((left, right, op), (right, left, _FLIPPED[op])):
                bound = _whole_bound(whole, literal, order)
                if bound is not None:
                    return Comparison(order, self._cast(whole, types.BIGINT), bound)  # type: ignore[arg-type]
        common = coerce.common_type(left.type, right.type)
        if common is None or not (common.is_scalar or common == types.VOID):
            raise self._mismatch(left, right, f"compare {left.type} with {right.type}")
        left_type, right_type = left.type, right.type
        if common.name == "decimal" and left_type.name != right_type.name:
            # A whole literal meets a decimal with as many digits as it has.
            if isinstance(left, Literal) and left_type.is_integral:
                left_type = coerce.literal_decimal(left)
            if isinstance(right, Literal) and right_type.is_integral:
                right_type = coerce.literal_decimal(right)
            common = coerce.common_type(left_type, right_type)
            assert common is not None
        return Comparison(op, self._cast(left, common), self._cast(right, common))  # type: ignore[arg-type]

    def _not_equal(self, syntax: exp.Expr) -> Expression:
        return Not(self._compare("=", self._operand(syntax.this), self._operand(syntax.args["expression"])))

    def _between(self, syntax: exp.Expr) -> Expression:
        operand = self._operand(syntax.this)
        low, high = self._operand(syntax.args["low"]), self._operand(syntax.args["high"])
        both = And((self._compare(">=", operand, low), self._compare("<=", operand, high)))
        return self._affordable(both)  # here, since each BETWEEN within another doubles what is inside

    def _in(self, syntax: exp.Expr) -> Expression:
        operand = self._operand(syntax.this)
        items = [self._operand(item) for item in syntax.expressions]
        if not items:
            raise FilterError("IN takes a list of values", column=_column(operand), hint="write a IN (1, 2, 3)")
        common = coerce.common_type_of_all([operand.type, *(item.type for item in items)])
        if common is None or not (common.is_scalar or common == types.VOID):
            shown = ", ".join(dict.fromkeys(str(item.type) for item in items))
            raise self._mismatch(operand, items[0], f"look for {operand.type} among {shown}")
        return In(self._cast(operand, common), tuple(self._cast(item, common) for item in items))

    def _like(self, syntax: exp.Expr) -> Expression:
        return self._pattern(syntax, escape="\\")

    def _escape(self, syntax: exp.Expr) -> Expression:
        escape = self.expression(syntax.args["expression"])
        if not isinstance(escape, Literal) or not isinstance(escape.value, str) or len(escape.value) != 1:
            raise FilterError("ESCAPE takes one character", column=_column(escape), hint="write LIKE '10!%' ESCAPE '!'")
        if not isinstance(syntax.this, exp.Like | exp.ILike):
            raise FilterError("ESCAPE follows LIKE or ILIKE", column=self._column_of(syntax))
        return self._pattern(syntax.this, escape=escape.value)

    def _pattern(self, syntax: exp.Expr, *, escape: str) -> Expression:
        matched = self._positive_pattern(syntax, escape=escape)
        return Not(matched) if syntax.args.get("negate") else matched

    def _positive_pattern(self, syntax: exp.Expr, *, escape: str) -> Expression:
        name = _PATTERNS[type(syntax)]
        operand = self._operand(syntax.this)
        if isinstance(operand, Literal) and operand.value is None:
            operand = Literal(None, types.STRING)
        if operand.type != types.STRING:
            raise FilterError(f"{name} takes a string, and this is of type {operand.type}", column=_column(operand))
        pattern = self.expression(syntax.args["expression"])
        if not isinstance(pattern, Literal) or pattern.type not in (types.STRING, types.VOID):
            hint = "compare with =, <, > where both sides are attributes"
            raise FilterError(f"the pattern of {name} is a string literal", column=_column(pattern), hint=hint)
        if pattern.value is None:
            return Literal(None, types.BOOLEAN)
        assert isinstance(pattern.value, str)
        try:
            if name == "RLIKE":
                check_rlike(pattern.value)
                return self._affordable(RLike(operand, pattern.value, pattern.at))
            text, mark = pattern.value, escape
            if name == "ILIKE":  # Spark: lower(operand) LIKE lower(pattern)
                operand, text = Call("lower", operand, types.STRING), text.lower()
            like_to_re2(text, mark)
            return self._affordable(Like(operand, text, mark, pattern.at))
        except FilterError:
            raise
        except ValueError as error:
            raise FilterError(f"{name} cannot read the pattern: {error}", column=pattern.at) from None

    def _is(self, syntax: exp.Expr) -> Expression:
        if not isinstance(syntax.args["expression"], exp.Null):
            raise FilterError(
                "IS is followed by NULL or NOT NULL", column=self._column_of(syntax), hint="write a = true"
            )
        return IsNull(self._operand(syntax.this))

    def _array_contains(self, syntax: exp.Expr) -> Expression:
        array, item = self.expression(syntax.this), self.expression(syntax.args["expression"])
        element = array.type.element
        if element is None:
            reason = f"array_contains takes an array, and this is of type {array.type}"
            raise FilterError(reason, column=_column(array) or self._column_of(syntax))
        common = coerce.element_type(element, item.type)
        if common is None:
            raise self._mismatch(array, item, f"look for {item.type} in {array.type}")
        return ArrayContains(self._cast(array, types.array(common)), self._cast(item, common))

    def _xpath_boolean(self, syntax: exp.Expr) -> Expression:
        column, arguments = self._column_of(syntax), syntax.expressions
        if syntax.name == PREFIX_MAP:
            hint = "write xpath_boolean(document, '/p:a', map('p', 'http://…'))"
            raise FilterError("a map is for the prefixes of xpath_boolean alone", column=column, hint=hint)
        if syntax.name.lower() != "xpath_boolean" or len(arguments) not in (2, 3):
            raise FilterError("xpath_boolean takes a document, a path and a map of its prefixes, if any", column=column)
        operand, path = map(self.expression, arguments[:2])
        prefixes: dict[str, str] = {}
        if len(arguments) == 3:
            if not isinstance(arguments[2], exp.Anonymous) or arguments[2].name != PREFIX_MAP:
                hint = "write map('p', 'http://…')"
                raise FilterError("the prefixes of a path are a map", column=self._column_of(arguments[2]), hint=hint)
            given = [self.expression(argument) for argument in arguments[2].expressions]
            prefixes = prefixes_of(given, self._column_of(arguments[2]))
        if operand.type == types.VOID:
            operand = self._cast(operand, types.STRING)
        if operand.type != types.STRING:
            reason = f"xpath_boolean takes a string, and this is of type {operand.type}"
            raise FilterError(reason, column=_column(operand) or column)
        read = read_path(path, prefixes, column)
        return XPathBoolean(operand, read) if read.value is not None else Literal(None, types.BOOLEAN)

    # ------------------------------------------------------------------ arithmetic

    def _arithmetic(self, syntax: exp.Expr) -> Expression:
        op = _ARITHMETIC[type(syntax)]
        left, right = self._operand(syntax.this), self._operand(syntax.args["expression"])
        common = coerce.common_type(left.type, right.type)
        if common == types.VOID:
            common = types.DOUBLE
        if common is None or not common.is_numeric:
            raise self._mismatch(left, right, f"compute {left.type} {op} {right.type}")
        if common.name == "decimal":
            left, right = (self._as_decimal(side, common) for side in (left, right))
            result = coerce.decimal_result(op, left.type, right.type)
            return Arithmetic(op, left, right, result)  # type: ignore[arg-type]
        left, right = self._cast(left, common), self._cast(right, common)
        if op == "/" and common != types.DOUBLE:
            left, right, common = self._cast(left, types.DOUBLE), self._cast(right, types.DOUBLE), types.DOUBLE
        return Arithmetic(op, left, right, common)  # type: ignore[arg-type]

    def _as_decimal(self, side: Expression, common: DataType) -> Expression:
        type_ = side.type
        if type_ == types.VOID:
            return self._cast(side, common)
        if isinstance(side, Literal) and type_.is_integral:
            return self._cast(side, coerce.literal_decimal(side))
        return self._cast(side, coerce.as_decimal(type_))

    def _negate(self, syntax: exp.Expr) -> Expression:
        inner = syntax.this
        if isinstance(inner, exp.Placeholder):
            number = int(inner.name[1:])
            if self._lexed.literals[number].kind == "number":
                literal = self._lexed.literals[number].value(negative=True)
                return replace(literal, at=self._lexed.sign_of(number) or literal.at)
        operand = self._number(self._operand(inner), "a minus sign", syntax)
        return Negate(operand, operand.type)

    def _call(self, syntax: exp.Expr) -> Expression:
        function = _CALLS[type(syntax)]
        if syntax.args.get("expression") or syntax.args.get("expressions"):
            raise FilterError(f"{function} takes one argument", column=self._column_of(syntax))
        operand = self.expression(syntax.this)
        if function == "abs":
            operand = self._number(operand, "abs", syntax)
            return Call("abs", operand, operand.type)
        if operand.type == types.VOID:
            operand = self._cast(operand, types.STRING)
        if operand.type != types.STRING:
            reason = f"{function} takes a string, and this is of type {operand.type}"
            raise FilterError(reason, column=_column(operand) or self._column_of(syntax))
        return Call(function, operand, types.INT if function == "length" else types.STRING)  # type: ignore[arg-type]

    def _number(self, operand: Expression, what: str, syntax: exp.Expr) -> Expression:
        type_ = operand.type
        if type_ in (types.VOID, types.STRING):
            return self._cast(operand, types.DOUBLE)
        if not type_.is_numeric:
            reason = f"{what} takes a number, and this is of type {type_}"
            raise FilterError(reason, column=_column(operand) or self._column_of(syntax))
        return operand

    # ------------------------------------------------------------------ shared

    def _cast(self, operand: Expression, target: DataType) -> Expression:
        """The operand in another type; literals are cast here and now."""
        source = operand.type
        if source == target:
            return operand
        if not isinstance(operand, Literal):
            return Cast(operand, target)
        value = cast(operand.value, source, target)
        if value is None and operand.value is not None:
            raise FilterError(f"{shortened(repr(operand.value))} is not a {target}", column=operand.at or None)
        return Literal(value, target, operand.at)

    def _affordable(self, expression: Expression) -> Expression:
        """The expression, unless it alone costs more than a filter may."""
        self._costs.check(expression)
        return expression

    def _mismatch(self, left: Expression, right: Expression, what: str) -> FilterError:
        column = _column(left) or _column(right)
        return FilterError(f"cannot {what}", column=column, hint="write the value in the attribute's type")

    def _column_of(self, syntax: exp.Expr) -> int:
        """The column of the first token of this syntax that the parser gave a place."""
        places = []
        for node in syntax.walk():
            if isinstance(node, exp.Placeholder):
                places.append(self._lexed.literals[int(node.name[1:])].at)
            elif "start" in node.meta:
                places.append(self._lexed.token_at(int(node.meta["start"])).at)
        return min(places, default=1)


def _before_points(syntax: exp.Expr) -> exp.Expr:
    while isinstance(syntax, exp.Dot | exp.Paren):
        syntax = syntax.this
    return syntax


def _says_more(syntax: exp.Expr) -> bool:
    return any(value for name, value in syntax.args.items() if name not in _ARGUMENTS)


def _whole_bound(whole: Expression, literal: Expression, order: str) -> Literal | None:
    """The bigint that Spark compares a whole number with, where the text orders it by a decimal literal.

    It says the same, but where the two would meet in a decimal that cannot hold all digits: only then it is taken.
    """
    if not (whole.type.is_integral and isinstance(literal, Literal) and isinstance(literal.value, Decimal)):
        return None
    low, high = types.BIGINT.integer_range
    common = coerce.common_type(whole.type, literal.type)
    assert common is not None
    if common.scale == literal.type.scale or not low <= literal.value <= high:
        return None
    value = math.floor(literal.value) if order in (">", "<=") else math.ceil(literal.value)
    return Literal(value, types.BIGINT, literal.at)


def _column(expression: Expression) -> int | None:
    """The first column that an expression stands at."""
    if isinstance(expression, Literal | Reference):
        return expression.at or None
    return min((at for at in map(_column, operands_of(expression)) if at is not None), default=None)


_HANDLERS: dict[type[exp.Expr], Callable[[_Resolver, exp.Expr], Expression]] = {
    exp.Placeholder: _Resolver._literal,
    exp.Null: _Resolver._null,
    exp.Boolean: _Resolver._boolean,
    exp.Column: _Resolver._reference,
    exp.Dot: _Resolver._reference,
    exp.Not: _Resolver._not,
    exp.And: _Resolver._chain,
    exp.Or: _Resolver._chain,
    exp.NEQ: _Resolver._not_equal,
    exp.Between: _Resolver._between,
    exp.In: _Resolver._in,
    exp.Like: _Resolver._like,
    exp.ILike: _Resolver._like,
    exp.RegexpLike: _Resolver._like,
    exp.Escape: _Resolver._escape,
    exp.Is: _Resolver._is,
    exp.ArrayContains: _Resolver._array_contains,
    exp.Anonymous: _Resolver._xpath_boolean,
    exp.Neg: _Resolver._negate,
    **dict.fromkeys(_COMPARISONS, _Resolver._comparison),
    **dict.fromkeys(_ARITHMETIC, _Resolver._arithmetic),
    **dict.fromkeys(_CALLS, _Resolver._call),
}
