"""From the text of a path to its tree: the linear part of XPath 1.0, and a reason for whatever else is written.

A path goes down: from the root through children, `//` descendants and `*` to elements, an attribute or
`text()`, with predicates on the way. What counts or looks back (positions, other axes, variables,
arithmetic) is refused by name.

`Q{uri}name` is a name with its namespace, the same wherever it stands (XPath 3.1 writes it so); a prefix needs a map,
and lxml knows prefixes alone: `with_uris` and `with_prefixes` write a path in one way or the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal as Choice
from typing import NamedTuple, NoReturn, TypeAlias, cast

from tidings.errors import FilterError, did_you_mean

Kind: TypeAlias = Choice["element", "attribute", "text"]
Operator: TypeAlias = Choice["=", "!=", "<", "<=", ">", ">="]
TextFunction: TypeAlias = Choice["contains", "starts-with"]


@dataclass(frozen=True, slots=True)
class NodeTest:
    """What a node has to be: of a kind, in a namespace (None: any), with a local name (None: any)."""

    kind: Kind
    namespace: str | None = None
    local: str | None = None

    @property
    def symbol(self) -> str:
        """The name that a node of the document goes by, where this asks for exactly one: `{uri}a`, `@{uri}a`."""
        assert self.local is not None
        return ("@" if self.kind == "attribute" else "") + clark(self.namespace, self.local)


@dataclass(frozen=True, slots=True)
class PathStep:
    descendant: bool  # at any depth below, else a child or an attribute
    test: NodeTest
    predicates: tuple[Predicate, ...] = ()
    at: int = field(default=0, compare=False, repr=False)  # 1-based column in the path's text


@dataclass(frozen=True, slots=True)
class XPath:
    """Steps from the document's root, or within a predicate from the node it is about: none is the node itself."""

    steps: tuple[PathStep, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    path: XPath


@dataclass(frozen=True, slots=True)
class Compare:
    """True where one of the nodes compares so: as a string with a string, as a number with a number."""

    path: XPath
    op: Operator
    value: str | float


@dataclass(frozen=True, slots=True)
class TextTest:
    """A test of the first node in the document's order; of the empty string if there is no node."""

    function: TextFunction
    path: XPath
    text: str


@dataclass(frozen=True, slots=True)
class Negated:
    operand: Predicate


@dataclass(frozen=True, slots=True)
class AllOf:
    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    operands: tuple[Predicate, ...]


Predicate: TypeAlias = Exists | Compare | TextTest | Negated | AllOf | AnyOf

SELF = XPath(())


def clark(namespace: str | None, local: str) -> str:
    """A name with its namespace, as `{uri}local`."""
    return f"{{{namespace}}}{local}" if namespace else local


MAX_LENGTH = 10_000  # characters
MAX_LEVELS = 32  # predicates and parentheses within each other
MAX_STEPS = 64

_FUNCTIONS = ("contains", "not", "starts-with", "text")
_AXES = ("attribute", "child", "descendant")
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_START = "A-Za-z_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f"
_START += "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"  # XML 1.0, NameStartChar
_NAME = rf"[{_START}][{_START}0-9.\-\u00b7\u0300-\u036f\u203f\u2040]*"
TOKEN = re.compile(
    rf"""[ \t\r\n]*(?:
      (?P<string>"[^"]*"|'[^']*')
    | (?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)
    | (?P<name>Q\{{[^{{}}]*\}}(?:{_NAME}|\*)|{_NAME}(?::(?!:)(?:{_NAME}|\*))?)
    | (?P<operator>//|::|\.\.|!=|<=|>=|[/\[\]()@*.,=<>|+$-])
    | (?P<end>$)
    | (?P<unreadable>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[ \t\r\n]*(-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[ \t\r\n]*")


def is_prefix(text: str) -> bool:
    """Whether a text can be the prefix of names."""
    return re.fullmatch(_NAME, text) is not None


def number_of(text: str) -> float:
    """XPath's number(): digits, with a minus and a point at most; anything else is NaN."""
    found = _NUMBER.fullmatch(text)
    return float(found.group(1)) if found else math.nan


def parse_path(text: str, namespaces: Mapping[str, str] | None = None) -> XPath:
    """The tree of a path; raises FilterError with the column in this text and a hint."""
    if not isinstance(text, str):
        raise FilterError(f"a path is text, not {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise FilterError(f"the path has more than {MAX_LENGTH:,} characters")
    return _Parser(text, namespaces or {}).path_of_query()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self._namespaces = namespaces
        self._tokens: list[_Token] = []
        self._next = 0
        self._level = 0
        for found in TOKEN.finditer(text):
            kind = cast(str, found.lastgroup)
            start, end = found.span(kind)
            token = _Token(kind, text[start:end], start + 1)
            self._tokens.append(token)
            if kind == "unreadable":
                raise _unreadable(token)
            if kind == "end":
                break

    # ------------------------------------------------------------------ tokens

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _is(self, *texts: str) -> bool:
        kind, text, _ = self._tokens[self._next]
        return text in texts and kind == "operator"

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        accepted = self._is(text)
        self._next += accepted
        return accepted

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"expected '{text}'")

    def _fail(self, reason: str, hint: str = "", token: _Token | None = None) -> NoReturn:
        token = token or self._token
        found = "the path ends" if token.kind == "end" else f"found '{token.text[:60]}'"
        raise FilterError(f"path: {reason}, {found}", column=token.at, hint=hint)

    def _refuse(self, what: str, token: _Token, hint: str = "") -> NoReturn:
        raise FilterError(f"path: {what}", column=token.at, hint=hint)

    # ------------------------------------------------------------------ paths

    def path_of_query(self) -> XPath:
        if self._token.kind == "end":
            raise FilterError("path: it is empty", hint="write a path, such as /rss/channel/item[author = 'Liu']/link")
        if self._token.kind in ("string", "number") or self._is("(", "-"):
            self._fail("a query is a path", "it begins with /, // or a name", self._token)
        if self._is(".", "@") or (self._token.kind == "name" and self._follows("(")):
            self._start_of_query()
        if self._is("/") and self._tokens[self._next + 1].kind == "end":
            self._refuse("/ alone is true of every document", self._token, "name an element after it")
        path = self._path(rooted=True)
        if self._token.kind != "end":
            self._after_query()
        return path

    def _start_of_query(self) -> None:
        if self._token.kind == "name" and self._token.text not in _FUNCTIONS:
            self._unknown_function(self._token)
        hint = "put the condition into a predicate, as /item[not(author)]" if self._token.kind == "name" else ""
        self._fail("a query is a path from the document's root", hint or "it begins with /, // or a name")

    def _after_query(self) -> NoReturn:
        if self._is("=", "!=", "<", "<=", ">", ">="):
            hint = f"put it into a predicate: …[. {self._token.text} …]"
            self._refuse("a query is a path, not a comparison", self._token, hint)
        if self._is("|"):
            self._refuse("'|' is not in the language", self._token, "subscribe to each path by itself")
        if self._token.text in ("and", "or"):
            self._refuse("a query is one path", self._token, "put the condition into a predicate, as /a[b and c]")
        self._other_operators()
        self._fail("expected '/', '//' or '['")

    def _path(self, *, rooted: bool) -> XPath:
        """Steps, from the root or from the node that a predicate is about."""
        steps: list[PathStep] = []
        descendant = False
        if self._is("/", "//"):
            if not rooted:
                hint = "begin with a name, @ or .//"
                self._refuse("a path in a predicate starts at the step it stands on", self._token, hint)
            descendant = self._take().text == "//"
        elif not rooted and self._accept("."):
            if not self._is("/", "//"):
                return SELF
            descendant = self._take().text == "//"
        while True:
            if len(steps) == MAX_STEPS:
                self._refuse(f"more than {MAX_STEPS} steps", self._token)
            steps.append(self._step(descendant))
            if not self._is("/", "//"):
                return XPath(tuple(steps))
            if steps[-1].test.kind != "element":
                self._refuse(f"nothing is below {_shown(steps[-1].test.kind)}", self._token)
            descendant = self._take().text == "//"

    def _step(self, descendant: bool) -> PathStep:
        at = self._token.at
        attribute = self._accept("@")
        if self._token.kind == "name" and self._follows("::"):
            attribute, descendant = self._axis(descendant)
        if self._is(".", ".."):
            hint = "a predicate tests what is above, as /item[author]/link" if self._is("..") else "leave it out"
            self._refuse(f"'{self._token.text}' as a step is not in the language", self._token, hint)
        test = self._test(attribute)
        predicates: list[Predicate] = []
        while self._is("["):
            predicates += self._predicate()
        return PathStep(descendant, test, tuple(predicates), at)

    def _axis(self, descendant: bool) -> tuple[bool, bool]:
        axis = self._take()
        self._take()
        if axis.text not in _AXES:
            known = ("ancestor", "following", "parent", "preceding", "self")
            hint = f"the axes are {', '.join(_AXES)}"
            if not axis.text.startswith(known) and not axis.text.startswith("descendant"):
                hint = did_you_mean(axis.text, _AXES)
            self._refuse(f"the axis '{axis.text}' is not in the language", axis, hint)
        return axis.text == "attribute", descendant or axis.text == "descendant"

    def _test(self, attribute: bool) -> NodeTest:
        kind = "attribute" if attribute else "element"
        if self._accept("*"):
            return NodeTest(cast(Kind, kind))
        if self._token.kind != "name":
            self._fail("expected a name, * or @")
        name = self._take()
        if self._is("("):
            return self._node_test(name, attribute)
        if name.text.startswith("Q{"):
            namespace, _, local = name.text[2:].rpartition("}")
        else:
            prefix, _, local = name.text.rpartition(":")
            namespace = ""
            if prefix:
                if prefix not in self._namespaces:
                    hint = did_you_mean(prefix, self._namespaces) if self._namespaces else ""
                    hint = hint or f"say what it stands for in a map of prefixes, or write Q{{…}}{local}"
                    self._refuse(f"unknown prefix '{prefix}'", name, hint)
                namespace = self._namespaces[prefix]
        return _named(cast(Kind, kind), namespace, None if local == "*" else local)

    def _node_test(self, name: _Token, attribute: bool) -> NodeTest:
        if name.text == "text" and not attribute:
            self._take()
            self._expect(")")
            return NodeTest("text")
        if name.text in ("node", "comment", "processing-instruction"):
            self._refuse(f"{name.text}() is not in the language", name, "write * for any element, text() for its text")
        if name.text in _FUNCTIONS:
            self._refuse(f"{name.text}() is no step", name, "put it into a predicate, as /item[contains(title, 'x')]")
        self._unknown_function(name)

    # ------------------------------------------------------------------ predicates

    def _predicate(self) -> tuple[Predicate, ...]:
        self._expect("[")
        self._deeper()
        condition = self._any()
        self._level -= 1
        self._expect("]")
        return condition.operands if isinstance(condition, AllOf) else (condition,)

    def _deeper(self) -> None:
        self._level += 1
        if self._level > MAX_LEVELS:
            self._refuse(f"more than {MAX_LEVELS} levels deep", self._token)

    def _any(self) -> Predicate:
        operands = [self._all()]
        while self._token.kind == "name" and self._token.text == "or":
            self._take()
            operands.append(self._all())
        return operands[0] if len(operands) == 1 else AnyOf(_flat(operands, AnyOf))

    def _all(self) -> Predicate:
        operands = [self._one()]
        while self._token.kind == "name" and self._token.text == "and":
            self._take()
            operands.append(self._one())
        return operands[0] if len(operands) == 1 else AllOf(_flat(operands, AllOf))

    def _one(self) -> Predicate:
        if self._is("("):
            self._take()
            self._deeper()
            inner = self._any()
            self._level -= 1
            self._expect(")")
            return inner
        if self._token.kind in ("number", "string") or self._is("-"):
            return self._literal_first()
        name = self._token
        if name.kind == "name" and self._follows("(") and name.text not in ("text", "node", "comment"):
            return self._call()
        path = self._path(rooted=False)
        if self._is("=", "!=", "<", "<=", ">", ">="):
            op = self._take().text
            return _compare(path, op, self._literal(op))
        self._other_operators()
        return Exists(path)

    def _literal_first(self) -> Predicate:
        start = self._token
        value = self._literal("")
        if not self._is("=", "!=", "<", "<=", ">", ">="):
            if isinstance(value, float) and self._is("]"):
                hint = "say by a value which one is meant, as [@id = 'x']"
                self._refuse("positions are not in the language", start, hint)
            self._other_operators()
            self._fail("a condition compares a path with a value", "write [price < 20]")
        op = self._take().text
        if self._token.kind in ("number", "string") or self._is("-"):
            self._fail("one side of a comparison is a path")
        return _compare(self._path(rooted=False), _FLIPPED[op], value)

    def _literal(self, op: str) -> str | float:
        negative = self._accept("-")
        token = self._token
        if token.kind == "number":
            self._take()
            return -float(token.text) if negative else float(token.text)
        if token.kind == "string" and not negative:
            self._take()
            return token.text[1:-1]
        if token.kind == "name" and not self._follows("("):
            self._fail(f"{op} takes a number or a string in quotes", f'write "{token.text}" if that is the text')
        self._fail(f"{op or '-'} takes a number or a string in quotes")

    def _call(self) -> Predicate:
        function = self._take()
        self._take()
        if function.text == "not":
            self._deeper()
            operand = self._any()
            self._level -= 1
            self._expect(")")
            return Negated(operand)
        if function.text not in ("contains", "starts-with"):
            self._unknown_function(function)
        path = self._path(rooted=False)
        self._expect(",")
        if self._token.kind != "string":
            self._fail(f"{function.text} takes a path and a string in quotes", f"write {function.text}(title, 'x')")
        text = self._take().text[1:-1]
        self._expect(")")
        return TextTest(cast(TextFunction, function.text), path, text)

    def _unknown_function(self, name: _Token) -> NoReturn:
        if name.text in ("position", "last", "count"):
            self._refuse(f"positions and counts are not in the language, and so not {name.text}()", name)
        self._refuse(f"unknown function '{name.text}'", name, did_you_mean(name.text, _FUNCTIONS))

    def _other_operators(self) -> None:
        token = self._token
        if self._is("+", "-", "*") or token.text in ("div", "mod"):
            self._refuse("there is no arithmetic in the language", token, "compute the value beforehand")
        if self._is("|"):
            self._refuse("'|' is not in the language", token, "write or between two conditions")
        if self._is("$"):
            self._refuse("there are no variables in the language", token, "write the value itself")

    def _follows(self, text: str) -> bool:
        token = self._tokens[self._next + 1]
        return token.kind == "operator" and token.text == text


_named = lru_cache(maxsize=4096)(NodeTest)


def _compare(path: XPath, op: str, value: str | float) -> Predicate:
    if op not in ("=", "!=") and isinstance(value, str):
        value = number_of(value)
    return Compare(path, cast(Operator, op), value)


def _flat(operands: list[Predicate], node: type[AllOf] | type[AnyOf]) -> tuple[Predicate, ...]:
    flat: list[Predicate] = []
    for operand in operands:
        flat += operand.operands if isinstance(operand, node) else (operand,)
    return tuple(flat)


def _shown(kind: str) -> str:
    return {"attribute": "an attribute", "text": "text()"}[kind]


def _unreadable(token: _Token) -> FilterError:
    if token.text in "'\"":
        return FilterError(f"path: the {token.text} is never closed", column=token.at)
    hint = {"&": "write and", "!": "write not(…)", "{": "a name with its namespace is written Q{uri}name"}
    return FilterError(f"path: unexpected {token.text!r}", column=token.at, hint=hint.get(token.text, ""))


def with_uris(text: str, namespaces: Mapping[str, str]) -> str:
    """A path with Q{uri}name for every prefix:name whose prefix is in the map."""

    def renamed(name: str) -> str:
        prefix, colon, local = name.rpartition(":")
        return f"Q{{{namespaces[prefix]}}}{local}" if colon and prefix in namespaces else name

    return _renamed(text, renamed)


def with_prefixes(text: str) -> tuple[str, dict[str, str]]:
    """A path with a prefix for every Q{uri}name, and the map that says which."""
    prefixes: dict[str, str] = {}

    def renamed(name: str) -> str:
        uri, _, local = name[2:].rpartition("}")
        return f"{prefixes.setdefault(uri, f'ns{len(prefixes)}')}:{local}" if uri else local

    path = _renamed(text, lambda name: renamed(name) if name.startswith("Q{") else name)
    return path, {prefix: uri for uri, prefix in prefixes.items()}


def _renamed(text: str, rename: Callable[[str], str]) -> str:
    if ":" not in text and "{" not in text:
        return text
    parts, end = [], 0
    for found in TOKEN.finditer(text):
        if found.lastgroup == "name":
            parts += [text[end : found.start("name")], rename(found.group("name"))]
            end = found.end()
    return "".join([*parts, text[end:]])
