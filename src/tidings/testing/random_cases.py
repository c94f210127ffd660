"""Filters made at random, as text, and cases of a domain, events and filters.

Filters have every operator and every way to write a literal and a name. The texts are written piece by piece, not from
a tree: what is tested is how they are read. Literals are drawn from near the values of the events, so that filters are
often true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np

from tidings.errors import FilterError
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.model.types import BIGINT, DOUBLE, STRING, DataType, Path
from tidings.testing.random_data import Generator, as_published

_COMPARISONS = ("=", "==", "<=>", "!=", "<>", "<", "<=", ">", ">=")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEEDS_QUOTES = frozenset(("in", "null", "like", "date", "timestamp", "select", "order", "group"))
_ZONES = ("", "", "Z", "+01:00", "-7:30", " UTC", " Europe/Paris", "GMT+2", " America/Los_Angeles")
_RLIKE_PARTS = ("a", "b", "[a-c]", "[^a]", ".", ".*", "\\d+", "(ab|b)", "5?", "é", "日", "\\.", "a{1,2}", "\\w")


class FilterWriter:
    """Writes filters over a domain, given records that the filters may be true of."""

    def __init__(self, random: Random, domain: Domain, records: Sequence[Mapping[Path, Any]]) -> None:
        self.random = random
        self._generator = Generator(random)
        self._leaves = {path: type_ for path, type_ in domain.leaves.items() if type_.is_filterable}
        self._seen: dict[Path, list[Any]] = {
            path: [record[path] for record in records if record.get(path) is not None] for path in self._leaves
        }

    def filter(self) -> str:
        return self._condition(self.random.choice((0, 0, 1, 1, 2, 3)))

    # ------------------------------------------------------------------ logic

    def _condition(self, depth: int) -> str:
        if depth <= 0:
            return self._predicate()
        chance = self.random.random()
        if chance < 0.3:
            return f" {self._word('AND')} ".join(self._condition(depth - 1) for _ in range(self.random.randint(2, 3)))
        if chance < 0.7:
            return f" {self._word('OR')} ".join(self._condition(depth - 1) for _ in range(self.random.randint(2, 3)))
        if chance < 0.82:
            return f"{self._word('NOT')} ({self._condition(depth - 1)})"
        if chance < 0.86:
            return f"{self._word('NOT')} {self._predicate()}"
        if chance < 0.9:
            return f"({self._condition(depth - 1)}) {self._comparison()} ({self._condition(depth - 1)})"
        return f"({self._condition(depth - 1)})"

    def _predicate(self) -> str:
        choices: list[tuple[float, Callable[[], str]]] = [
            (5, self._compared_attribute), (2, self._compared_attributes), (2, self._compared_numbers),
            (1, self._between), (2, self._in), (1.5, self._like), (0.7, self._rlike), (1, self._is_null),
            (1.5, self._array_contains), (0.7, self._compared_texts), (0.3, self._bare),
        ]  # fmt: skip
        weights, makers = zip(*choices, strict=True)
        maker: Callable[[], str] = self.random.choices(makers, weights)[0]
        return maker()

    def _compared_attribute(self) -> str:
        path, type_ = self._attribute(lambda type_: type_.is_scalar)
        sides = [self._name(path), self._literal_for(path, type_)]
        if self.random.random() < 0.15:
            sides.reverse()
        return f"{sides[0]}{self._blank()}{self._comparison()}{self._blank()}{sides[1]}"

    def _compared_attributes(self) -> str:
        path, type_ = self._attribute(lambda type_: type_.is_scalar)
        other, _ = self._attribute(lambda other: _alike(type_, other))
        return f"{self._name(path)} {self._comparison()} {self._name(other)}"

    def _compared_numbers(self) -> str:
        return f"{self._number(2)} {self._comparison()} {self._number(1)}"

    def _compared_texts(self) -> str:
        path, _ = self._attribute(lambda type_: type_ == STRING)
        function = self._word(self.random.choice(("lower", "upper")))
        text = self._near(path, STRING)
        if self.random.random() < 0.7:
            text = text.lower() if function.lower() == "lower" else text.upper()
        return f"{function}({self._name(path)}) {self._comparison()} {self._string(text)}"

    def _between(self) -> str:
        path, type_ = self._attribute(lambda type_: type_.is_scalar)
        negation = self._negation()
        low, high = self._literal_for(path, type_), self._literal_for(path, type_)
        return f"{self._name(path)} {negation}{self._word('BETWEEN')} {low} {self._word('AND')} {high}"

    def _in(self) -> str:
        path, type_ = self._attribute(lambda type_: type_.is_scalar)
        items = [self._literal_for(path, type_) for _ in range(self.random.choice((1, 2, 3, 3, 6)))]
        if self.random.random() < 0.1:
            other, _ = self._attribute(lambda other: _alike(type_, other))
            items.append(self._name(other))
        return f"{self._name(path)} {self._negation()}{self._word('IN')} ({', '.join(items)})"

    def _is_null(self) -> str:
        path, _ = self._attribute(lambda _: True)
        operand = self._name(path) if self.random.random() < 0.7 else f"({self._number(1)})"
        return f"{operand} {self._word('IS')} {self._negation()}{self._word('NULL')}"

    def _bare(self) -> str:
        path, type_ = self._attribute(lambda type_: type_.name == "boolean")
        if type_.name == "boolean" and self.random.random() < 0.7:
            return self._name(path)
        return self._word(self.random.choice(("true", "false")))

    def _array_contains(self) -> str:
        path, type_ = self._attribute(lambda type_: type_.name == "array")
        if type_.element is None:
            return self._is_null()
        held = [item for items in self._seen[path] for item in items if item is not None]
        value = (
            self.random.choice(held) if held and self.random.random() < 0.7 else self._generator.value(type_.element)
        )
        item = self._literal(value, type_.element, as_text=False)
        if self.random.random() < 0.2:
            element = type_.element
            other, _ = self._attribute(lambda other: _alike(element, other))
            item = self._name(other)
        return f"{self._word('array_contains')}({self._name(path)}, {item})"

    # ------------------------------------------------------------------ patterns

    def _like(self) -> str:
        path, _ = self._attribute(lambda type_: type_ == STRING)
        text = self._near(path, STRING)
        keyword = self.random.choice(("LIKE", "LIKE", "ILIKE"))
        escape = self.random.choice("\\\\\\!|a" if keyword == "LIKE" else "\\!|")  # ILIKE makes an `A` an `a` first
        pattern = "".join(self._like_part(character, escape) for character in text)
        if self.random.random() < 0.5:
            pattern += "%"
        if self.random.random() < 0.3:
            pattern = "%" + pattern[self.random.randint(0, len(pattern)) :]
            if escape in pattern[:2]:  # half an escape may be left
                pattern = "%"
        suffix = "" if escape == "\\" else f" {self._word('ESCAPE')} '{escape}'"
        return f"{self._name(path)} {self._negation()}{self._word(keyword)} {self._string(pattern)}{suffix}"

    def _like_part(self, character: str, escape: str) -> str:
        chance = self.random.random()
        if chance < 0.15:
            return "_"
        if chance < 0.2:
            return "%"
        return escape + character if character in ("%", "_", escape) else character

    def _rlike(self) -> str:
        """Of what Java and RE2 read alike: no `$`, `\\s`, `\\b` or flags."""
        path, _ = self._attribute(lambda type_: type_ == STRING)
        parts = [self.random.choice(_RLIKE_PARTS) for _ in range(self.random.randint(1, 3))]
        pattern = (
            ("^" if self.random.random() < 0.3 else "") + "".join(parts) + ("\\z" if self.random.random() < 0.2 else "")
        )
        return f"{self._name(path)} {self._negation()}{self._word('RLIKE')} {self._string(pattern)}"

    # ------------------------------------------------------------------ numbers

    def _number(self, depth: int) -> str:
        chance = self.random.random()
        if depth <= 0 or chance < 0.35:
            path, type_ = self._attribute(lambda type_: type_.is_numeric)
            if self.random.random() < 0.6:
                return self._name(path)
            return self._literal(self._near(path, type_), type_, as_text=False)
        if chance < 0.75:
            op = self.random.choice("+-*/%")
            left, right = self._number(depth - 1), self._number(depth - 1)
            text = f"{left} {op} {right}"
            return f"({text})" if self.random.random() < 0.6 else text
        if chance < 0.85:
            return f"-({self._number(depth - 1)})"
        if chance < 0.95:
            return f"{self._word('abs')}({self._number(depth - 1)})"
        path, _ = self._attribute(lambda type_: type_ == STRING)
        return f"{self._word('length')}({self._name(path)})"

    # ------------------------------------------------------------------ literals

    def _literal_for(self, path: Path, type_: DataType) -> str:
        """A literal to compare an attribute with, mostly of its type and near its values."""
        chance = self.random.random()
        if chance < 0.03:
            return self._word("NULL")
        if chance < 0.12:
            other, other_type = self._attribute(lambda other: _alike(type_, other))
            return self._literal(self._near(other, other_type), other_type, as_text=type_ == other_type)
        if chance < 0.15 and type_ == STRING:
            number_type = self.random.choice((BIGINT, DOUBLE))
            return self._literal(self._generator.value(number_type), number_type)
        return self._literal(self._near(path, type_), type_)

    def _near(self, path: Path, type_: DataType) -> Any:
        seen = self._seen[path]
        if not seen or type_.name == "array" or self.random.random() < 0.2:
            return self._generator.value(type_)
        value = self.random.choice(seen)
        if self.random.random() < 0.2:
            if type_.is_integral or type_.is_datetime:
                return value + self.random.choice((-1, 1))
            if type_.name in ("float", "double") and math.isfinite(value):
                return value + self.random.choice((-0.25, 0.25, 1.0))
        return value

    def _literal(self, value: Any, type_: DataType, *, as_text: bool = True) -> str:
        """The value, in any of the ways to write one that Spark compares with the type, a string maybe among them."""
        if type_ == STRING:
            return self._string(value)
        if as_text and self.random.random() < 0.12:
            return self._quoted(_plain_text(value, type_))
        if type_.name == "boolean":
            return self._word("true" if value else "false")
        if type_.is_datetime:
            return self._time(value, type_)
        if type_.is_integral:
            return self._integer(value)
        return self._fraction(value)

    def _integer(self, value: int) -> str:
        forms = ["", "", "", "", "BD", ".0", ".", "e0", "D", "L" if -(2**63) <= value < 2**63 else "BD"]
        forms += ["S"] if -(2**15) <= value < 2**15 else []
        forms += ["Y"] if -(2**7) <= value < 2**7 else []
        return f"{value}{self._word(self.random.choice(forms))}"

    def _fraction(self, value: float | Decimal) -> str:
        if isinstance(value, Decimal):
            text = f"{value:f}"
            return self.random.choice((text, text, text + "BD", text + "D"))
        if not math.isfinite(value):
            return "1e308" if value > 0 else "-1e308"  # no number is written so; texts have them
        exponent = f"{value!r}".replace("e+", "e") if "e" in repr(value) else f"{value!r}e0"
        forms = [exponent, exponent.upper(), f"{value!r}D".replace("e+", "e")]
        if abs(value) < 1e38:
            forms.append(f"{np.float32(value)!s}F".replace("e+", "e"))
        if value == 0 or 1e-12 < abs(value) < 1e18:
            plain = np.format_float_positional(value, trim="-")
            forms += [plain, plain, plain[1:] if plain.startswith("0.") else plain + ("" if "." in plain else ".")]
        return self.random.choice(forms)

    def _time(self, value: int, type_: DataType) -> str:
        moment = _moment(value, type_)
        if type_.name == "date":
            text = self.random.choice((moment.isoformat(), f"{moment.year:04}-{moment.month}-{moment.day}"))
            form = self.random.choice(("DATE", "DATE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"))
        else:
            text = moment.replace(tzinfo=None).isoformat(self.random.choice(" T"))
            if type_.name == "timestamp":
                text += self.random.choice(_ZONES)
            form = self.random.choice((type_.name.upper(), type_.name.upper(), "TIMESTAMP_LTZ", "DATE"))
        return f"{self._word(form)}{self.random.choice((' ', ''))}{self._quoted(text)}"

    def _string(self, value: str) -> str:
        chance = self.random.random()
        if chance < 0.15 and "'" not in value:
            return f"{self.random.choice('rR')}'{value}'"
        if chance < 0.2 and '"' not in value:
            return f'r"{value}"'
        if chance < 0.25 and len(value) > 1:
            cut = self.random.randint(1, len(value) - 1)
            return f"{self._quoted(value[:cut])} {self._quoted(value[cut:])}"
        return self._quoted(value)

    def _quoted(self, value: str) -> str:
        quote = self.random.choice("''''\"")
        return quote + "".join(self._character(character, quote) for character in value) + quote

    def _character(self, character: str, quote: str) -> str:
        if character == quote:
            return self.random.choice((quote * 2, "\\" + quote))
        if character == "\\":
            return "\\\\"
        if character in _ESCAPES and self.random.random() < 0.5:
            return _ESCAPES[character]
        if self.random.random() > 0.97:
            return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08X}"
        return character

    # ------------------------------------------------------------------ words

    def _attribute(self, wanted: Callable[[DataType], bool]) -> tuple[Path, DataType]:
        """An attribute of one of these types, or any if there is none."""
        fitting = [item for item in self._leaves.items() if wanted(item[1])]
        return self.random.choice(fitting or list(self._leaves.items()))

    def _name(self, path: Path) -> str:
        return ".".join(self._name_part(part) for part in path)

    def _name_part(self, part: str) -> str:
        if self.random.random() < 0.1 and part.isascii():
            part = part.swapcase()
        if _PLAIN.fullmatch(part) and part.lower() not in _NEEDS_QUOTES and self.random.random() < 0.8:
            return part
        return "`" + part.replace("`", "``") + "`"

    def _word(self, word: str) -> str:
        return self.random.choice((word, word, word.lower(), word.upper()))

    def _comparison(self) -> str:
        return self.random.choice(_COMPARISONS)

    def _negation(self) -> str:
        return self._word("NOT") + " " if self.random.random() < 0.25 else ""

    def _blank(self) -> str:
        return self.random.choice((" ", " ", " ", "  ", "\n"))


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\x00": "\\0"}


def _alike(type_: DataType, other: DataType) -> bool:
    """Whether Spark compares the two types, mostly."""
    return (
        (type_.is_numeric and other.is_numeric)
        or (type_.is_datetime and other.is_datetime)
        or (type_ == other and other.is_scalar)
    )


def _moment(value: int, type_: DataType) -> Any:
    """As Python's own date or time; one step beyond its calendar is the epoch."""
    try:
        return as_published(value, type_)
    except OverflowError:
        return as_published(0, type_)


def _plain_text(value: Any, type_: DataType) -> str:
    """A text that reads as the value where it is compared with the type."""
    if type_.is_datetime:
        return str(_moment(value, type_))
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """Filters and events over one domain; the filters are often true of the events."""

    domain: Domain
    events: list[dict[str, Any]]
    filters: list[str]

    def readable(self) -> list[tuple[int, str]]:
        """The filters that are in the language, each with its number: some that are generated are refused."""
        return [(number, text) for number, text in enumerate(self.filters) if _is_readable(text, self.domain)]


def _is_readable(text: str, domain: Domain) -> bool:
    try:
        parse_filter(text, domain)
    except FilterError:
        return False
    return True


def make_case(random: Random, *, events: int, filters: int, size: int = 14) -> Case:
    """Makes a case of this many events, filters and attributes; the filters use values of the events."""
    generator = Generator(random)
    domain = generator.domain(size=size)
    made = generator.events(domain, events)
    writer = FilterWriter(random, domain, [read_record(event, domain) for event in made])
    return Case(domain, made, [writer.filter() for _ in range(filters)])
