"""Read a filter's text into tokens, by Spark's lexical rules, with its literals taken out.

Spark and the SQL parser differ on literals (`'a''b'`, escapes, `5Y`, `1e3`, `r'…'`), so those
are read here; the parser is handed a *shape*: keywords, operators, and a placeholder for each
literal and name. Nothing else can reach it. Filters that differ only in those share a shape, and
the parser's work on it.
"""

from __future__ import annotations

import ctypes
import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from tidings.errors import FilterError, did_you_mean
from tidings.filter import tree
from tidings.filter.meaning.operators import cast
from tidings.model import types

MAX_TOKENS = 10_000
MAX_LEVELS = 200

KEYWORDS = frozenset("AND OR NOT IN BETWEEN LIKE ILIKE RLIKE IS NULL TRUE FALSE ESCAPE".split())
FUNCTIONS = frozenset(("array_contains", "lower", "upper", "length", "abs", "xpath_boolean"))
PREFIX_MAP = "xpath_prefixes"  # what `map` is to the parser, which has ideas of its own of maps
TYPED_LITERALS = {
    "DATE": types.DATE,
    "TIMESTAMP": types.TIMESTAMP,
    "TIMESTAMP_LTZ": types.TIMESTAMP,
    "TIMESTAMP_NTZ": types.TIMESTAMP_NTZ,
}
_BEFORE_STRINGS = frozenset((*TYPED_LITERALS, "X", "INTERVAL"))
# What people write that is not in the language, and what there is for it.
INSTEAD = {
    "REGEXP": "write RLIKE",
    "CASE": "write the cases as AND and OR",
    "CAST": "there are no casts; write the literal in the attribute's type",
    "XOR": "write (a AND NOT b) OR (b AND NOT a)",
    "DISTINCT": "write a <=> b for 'is not distinct from', NOT (a <=> b) for 'is distinct from'",
    "EXISTS": "write IS NOT NULL",
    "SELECT": "a filter is a condition, without SELECT and WHERE",
    "WHERE": "a filter is a condition, without SELECT and WHERE",
    "DIV": "write / (on whole numbers it gives a double)",
    "INTERVAL": "write the point in time, as TIMESTAMP '2024-05-01 00:00:00Z'",
    "FROM": "write NOT (a <=> b) for 'is distinct from'",
    "WHEN": "write the cases as AND and OR",
    "ANY": "write a LIKE 'x%' OR a LIKE 'y%'",
    "ALL": "write a LIKE 'x%' AND a LIKE 'y%'",
    "X": "binary values are carried along, not filtered",
}

TOKEN = re.compile(
    r"""
    \s*(?:
      (?P<raw>[rR](?:'[^']*'|"[^"]*"))
    | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[lLsSyYfFdD]|[bB][dD])?(?![A-Za-z0-9_]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<comment>--|/\*)
    | (?P<operator><=>|<>|!=|==|<=|>=|[=<>+\-*/%(),.])
    | (?P<unreadable>\S)
    )
    """,
    re.VERBOSE | re.DOTALL,
)

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class Token(NamedTuple):
    kind: str  # "keyword", "function", "name", "operator", or "literal"
    text: str  # as handed to the parser
    at: int  # 1-based column in the filter's text
    written: str  # as the user wrote it


@dataclass(frozen=True)
class Lexed:
    """A filter's shape, the tokens it is made of, and the literals and names taken out of it."""

    shape: str
    literals: tuple[LiteralText, ...]
    names: tuple[tuple[str, int], ...]  # each with the column it stands at
    tokens: tuple[Token, ...]

    def token_at(self, offset: int) -> Token:
        """The token that covers this 0-based offset of the shape."""
        return self.tokens[bisect_right(self._starts, offset) - 1]

    def sign_of(self, literal: int) -> int | None:
        """The column of the minus sign right before a literal, if there is one."""
        position = self._places[literal]
        before = self.tokens[position - 1] if position else None
        return before.at if before is not None and before.text == "-" else None

    def before(self, literal: int) -> str:
        """The token before a literal and the parentheses it is in."""
        earlier = range(self._places[literal] - 1, -1, -1)
        return next((self.tokens[i].text for i in earlier if self.tokens[i].text != "("), "")

    @cached_property
    def _places(self) -> list[int]:
        """Where among the tokens each literal is."""
        return [i for i, token in enumerate(self.tokens) if token.kind == "literal"]

    @cached_property
    def _starts(self) -> list[int]:
        """Where in the shape each token starts: they are one space apart."""
        return list(accumulate((len(token.text) + 1 for token in self.tokens[:-1]), initial=0))


class LiteralText(NamedTuple):
    """A literal as written: `kind` is "string", "number" or a typed literal's keyword."""

    kind: str
    text: str  # of a string its value, of a number its digits
    at: int
    written: tuple[int, int]  # where its quotes or digits stand in the filter's text, 0-based

    def value(self, *, negative: bool = False) -> tree.Literal:
        """The typed literal; `negative` takes a minus sign into it, as Spark's grammar does."""
        if self.kind == "number":
            return _number(self, negative)
        if self.kind == "string":
            return tree.Literal(self.text, types.STRING, self.at)
        type_ = TYPED_LITERALS[self.kind]
        value = cast(self.text, types.STRING, type_)
        if value is None:
            example = "2024-05-01" if type_ is types.DATE else "2024-05-01 12:30:00"
            reason = f"'{shortened(self.text)}' is not a {type_}"
            raise FilterError(reason, column=self.at, hint=f"write {self.kind} '{example}'")
        return tree.Literal(value, type_, self.at)


def subquery_column(text: str) -> int | None:
    """Where a subquery begins in a filter that was refused: at a SELECT or WITH in parentheses, with more after it."""
    found = [(match.lastgroup, match.span(match.lastgroup or 0)) for match in TOKEN.finditer(text)]
    for (_, before), (_, word), (kind, after) in zip(found, found[1:], found[2:], strict=False):
        begins = text[slice(*before)] == "(" and text[slice(*word)].upper() in ("SELECT", "WITH")
        if begins and (kind != "operator" or text[slice(*after)] == "*"):
            return word[0] + 1
    return None


def lex(text: str) -> Lexed:
    """Split a filter into tokens, refusing what the language does not have."""
    reading = _Reading(text)
    # Every match begins where the one before it ended: no search, which could take quadratic time.
    for match in TOKEN.finditer(text, 0, len(text.rstrip())):
        kind = match.lastgroup
        assert kind is not None
        start, end = match.span(kind)
        written = text[start:end]
        if kind == "operator" and written not in "()":  # the most frequent, and nothing to it
            reading.tokens.append(Token("operator", written, start + 1, written))
        elif kind == "unreadable":
            raise _unreadable(text, start)
        else:
            reading.add(kind, written, start, end)
        if len(reading.tokens) > MAX_TOKENS:
            raise FilterError(
                f"more than {MAX_TOKENS:,} tokens", column=start + 1, hint="split it into several filters"
            )
    tokens = reading.tokens
    if not tokens:
        raise FilterError(
            "the filter is empty", hint="write a condition, such as price > 8.30; TRUE matches every event"
        )
    _check_levels(tokens)
    return Lexed(
        " ".join([token.text for token in tokens]), tuple(reading.literals), tuple(reading.names), tuple(tokens)
    )


class _Reading:
    def __init__(self, text: str) -> None:
        self._text = text
        self.tokens: list[Token] = []
        self.literals: list[LiteralText] = []
        self.names: list[tuple[str, int]] = []

    def add(self, kind: str, written: str, start: int, end: int) -> None:
        at = start + 1
        if kind == "operator":
            self._operator(written, at)
        elif kind == "word":
            upper = written.upper()
            if upper in KEYWORDS:
                self.tokens.append(Token("keyword", upper, at, written))
            else:
                self._name(written, written, at)
        elif kind == "number":
            self._literal("number", written, at, (start, end))
        elif kind in ("string", "raw"):
            self._string(string_value(written, at), at, (start, end))
        elif kind == "quoted":
            self._name(written[1:-1].replace("``", "`"), written, at)
        else:
            raise FilterError("comments are not in the language", column=at, hint="a minus of a minus is written - -5")

    def _name(self, name: str, written: str, at: int) -> None:
        # Numbered and back-quoted, every word is a name to the parser, also those that SQL reserves, and filters
        # that differ in their names share a shape too.
        self.tokens.append(Token("name", f"`n{len(self.names)}`", at, written))
        self.names.append((name, at))

    def _operator(self, written: str, at: int) -> None:
        before = self.tokens[-1] if self.tokens else None
        if before is not None:
            if written == "(" and before.kind == "name" and before.written[0] != "`":
                self.tokens[-1] = _function(before)
            elif written == ")" and before.text == ",":
                raise FilterError("something is missing after ','", column=before.at)
        self.tokens.append(Token("operator", written, at, written))

    def _string(self, value: str, at: int, span: tuple[int, int]) -> None:
        before = self.tokens[-1] if self.tokens else None
        if before is not None and before.kind == "literal" and self.literals[-1].kind == "string":
            joined = self.literals[-1]  # 'a' 'b' is 'ab'
            self.literals[-1] = LiteralText("string", joined.text + value, joined.at, (joined.written[0], span[1]))
        elif before is not None and before.kind == "name" and before.written.upper() in _BEFORE_STRINGS:
            kind = before.written.upper()
            if kind in INSTEAD:
                raise FilterError(f"{kind} literals are not in the language", column=before.at, hint=INSTEAD[kind])
            self.tokens.pop()
            self._literal(kind, value, before.at, span)
        else:
            self._literal("string", value, at, span)

    def _literal(self, kind: str, value: str, at: int, span: tuple[int, int]) -> None:
        self.tokens.append(Token("literal", f":p{len(self.literals)}", at, self._text[slice(*span)]))
        self.literals.append(LiteralText(kind, value, at, span))


def _function(name: Token) -> Token:
    if name.written.lower() == "map":
        return Token("function", PREFIX_MAP, name.at, name.written)
    if name.written.lower() not in FUNCTIONS:
        hint = INSTEAD.get(name.written.upper()) or did_you_mean(name.written, FUNCTIONS)
        raise FilterError(f"unknown function '{shortened(name.written)}'", column=name.at, hint=hint)
    return Token("function", name.written.lower(), name.at, name.written)


def _unreadable(text: str, position: int) -> FilterError:
    character, column = text[position], position + 1
    if character in "'\"`":
        return FilterError(
            f"the {character} is never closed", column=column, hint=f"inside, it is written {character * 2}"
        )
    if character.isdigit():
        word = re.match(r"[\w.]+", text[position:])
        assert word is not None
        reason = f"'{shortened(word.group())}' is no number"
        return FilterError(reason, column=column, hint="a name that starts so is back-quoted")
    if character.isalpha():
        return FilterError(f"unexpected '{character}'", column=column, hint="back-quote names with letters beyond a-z")
    hints = {
        "!": "write NOT", "|": "write OR", "&": "write AND", ";": "a filter is one condition",
        "?": "write the value itself", ":": "write the value itself", "[": "write array_contains(items, 'x')",
        "::": INSTEAD["CAST"], "||": "there is nothing that joins strings; 'or' is written OR",
    }  # fmt: skip
    hint = hints.get(text[position : position + 2]) or hints.get(character, "")
    return FilterError(f"unexpected {character!r}", column=column, hint=hint)


def _check_levels(tokens: list[Token]) -> None:
    """Bound the nesting before anything recurses: parentheses, and runs of NOT and signs."""
    open_levels: list[int] = []  # of each open parenthesis: the levels it is worth
    run = level = 0
    for token in tokens:
        if token.text == "(":
            open_levels.append(run + 1)
            level += 1
        elif token.text == ")":
            if not open_levels:
                raise FilterError("a ')' without its '('", column=token.at)
            level -= run + open_levels.pop()
            run = 0
            continue
        if token.text in ("NOT", "-", "+"):
            run += 1
            level += 1
        elif token.text == "(":
            run = 0
        else:
            level -= run
            run = 0
        if level > MAX_LEVELS:
            raise too_deep(token.at)
    if open_levels:
        raise FilterError("a '(' is never closed", column=max(token.at for token in tokens if token.text == "("))


def shortened(text: str) -> str:
    """The beginning of a text, for an error that quotes it."""
    return text if len(text) <= 60 else text[:60] + "…"


def too_deep(column: int) -> FilterError:
    return FilterError(f"more than {MAX_LEVELS} levels deep", column=column, hint="split it into several filters")


def string_value(written: str, at: int) -> str:
    """The string that is written so, in its quotes."""
    if written[0] in "rR":
        return _checked(written[2:-1], at)
    quote, body = written[0], written[1:-1]
    if "\\" not in body:
        return _checked(body.replace(quote * 2, quote), at)
    # A doubled quote is one quote, but not where its first half is escaped.
    parts = re.split(r"(\\.)", body, flags=re.DOTALL)
    body = "".join(part if part[:1] == "\\" else part.replace(quote * 2, quote) for part in parts)
    return _checked(_ESCAPE.sub(_escaped, body), at)


def _escaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) == 1:
        return _ESCAPED.get(code, code)
    if code[0] in "uU":
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else "\ud800"  # refused with the lone surrogates
    return chr(int(code, 8))


def _checked(value: str, at: int) -> str:
    """A string without lone surrogates; pairs written as two \\u escapes become one character."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        try:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise FilterError("the string is not valid Unicode", column=at, hint="write the character itself") from None
    return value


def _number(literal: LiteralText, negative: bool) -> tree.Literal:
    """The value and type that Spark gives a number; out of range is refused."""
    text = literal.text.upper()
    digits = ("-" if negative else "") + text.rstrip("LSYFBD")
    suffix = text[len(text.rstrip("LSYFBD")) :]
    if suffix in ("L", "S", "Y"):
        type_ = {"L": types.BIGINT, "S": types.SMALLINT, "Y": types.TINYINT}[suffix]
        return tree.Literal(_in_range(Decimal(_whole(digits, literal)), type_, literal), type_, literal.at)
    if suffix in ("D", "F") or (not suffix and "E" in text):
        type_ = types.FLOAT if suffix == "F" else types.DOUBLE
        value = float(digits)
        if type_ is types.FLOAT:
            value = ctypes.c_float(value).value
        if math.isinf(value):
            raise FilterError(f"{shortened(literal.text)} is out of range for a {type_}", column=literal.at)
        return tree.Literal(value, type_, literal.at)
    if not suffix and "." not in text:
        number = Decimal(digits)  # of any length, unlike an int
        for type_ in (types.INT, types.BIGINT):
            low, high = type_.integer_range
            if low <= number <= high:
                return tree.Literal(int(number), type_, literal.at)
    return _decimal(Decimal(digits), literal)


def _whole(digits: str, literal: LiteralText) -> str:
    if "." in digits or "E" in digits:
        reason = f"'{shortened(literal.text)}' is no number"
        raise FilterError(reason, column=literal.at, hint="L, S and Y follow whole numbers")
    return digits


def _in_range(number: Decimal, type_: types.DataType, literal: LiteralText) -> int:
    low, high = type_.integer_range
    if not low <= number <= high:
        reason = f"{shortened(literal.text)} is out of range for a {type_}"
        raise FilterError(reason, column=literal.at, hint=f"{low} to {high}")
    return int(number)


def _decimal(value: Decimal, literal: LiteralText) -> tree.Literal:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale)
    if precision > types.MAX_PRECISION:
        raise FilterError(
            f"{shortened(literal.text)} has more than {types.MAX_PRECISION} digits",
            column=literal.at,
            hint="write it as a double, 1.5e0",
        )
    with_scale = Decimal(int(value)) if exponent > 0 else value
    if not with_scale:
        with_scale = with_scale.copy_abs()  # a decimal has no negative zero
    return tree.Literal(with_scale, types.decimal(precision, scale), literal.at)
