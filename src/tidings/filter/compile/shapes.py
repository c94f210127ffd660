"""Filters of one shape: the same text but for its literals.

A scanner finds the literals in a whole column of filters by two regular expressions; what is
left of a text is its *shape*. Shapes that differ only in the names of attributes of the same
types share a *template*. The scanner only guesses: a plan is made from a filter that the lexer
has read, and only where both see the same literals.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow.compute as pc

from tidings.errors import DomainError
from tidings.filter.compile.literal_columns import ArrowArray, Hole
from tidings.filter.syntax.lexer import KEYWORDS, TYPED_LITERALS, Lexed
from tidings.model.domain import Domain
from tidings.model.types import DataType, Path

_STRING = r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\(?s:.)|'')*'|"(?:[^"\\]|\\(?s:.)|"")*\""""
_PLAIN_STRING = r"'[^'\\]*'"
_NUMBER = r"\b[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:[lLsSyYfFdD]|[bB][dD])?\b"
_LITERAL = re.compile(f"({_STRING}|{_NUMBER})", re.ASCII)
_HOLE = re.compile(r"('s'|\b0\b)", re.ASCII)
_PART = r"(?:[A-Za-z_][A-Za-z0-9_]*|`[^`]+`)"
_ANY_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_NAME = re.compile(f"'s'|{_ANY_NAME}")
QUOTED_HOLE = "'s'"
_MARK = "\x01"  # stands before the number of a name in a template: no text that is read has it


def shapes_of(texts: ArrowArray) -> ArrowArray:
    """The shape of each text: its strings replaced by 's', its numbers by 0."""
    shapes = pc.replace_substring_regex(texts, _STRING, QUOTED_HOLE)
    return pc.replace_substring_regex(shapes, _NUMBER, "0").dictionary_encode()


def texts_in_holes(template: str, texts: ArrowArray) -> list[ArrowArray]:
    """The texts in the holes of filters of one template, a column for each hole."""
    found: ArrowArray = pc.extract_regex(texts, pattern=_pattern(template, _PLAIN_STRING))
    columns = [found.field(i) for i in range(found.type.num_fields)]
    if found.null_count:  # strings with quotes and escapes in them: their pattern is much the slower one
        odd: ArrowArray = pc.is_null(found)
        general = pc.extract_regex(texts.filter(odd), pattern=_pattern(template, _STRING))
        columns = [pc.replace_with_mask(column, odd, general.field(i)) for i, column in enumerate(columns)]
    return columns


def _pattern(template: str, string: str) -> str:
    pattern = ""
    for i, piece in enumerate(_HOLE.split(template)):
        if i % 2:
            pattern += f"(?P<h{i // 2}>{string if piece == QUOTED_HOLE else _NUMBER})"
        else:
            pattern += _ANY_NAME.join(map(re.escape, re.split(f"{_MARK}.", piece)))
    return f"^{pattern}$"


class Template(NamedTuple):
    """A shape less the names of its attributes: filters with the same template have the same tree but for names."""

    text: str  # with a mark and a letter for each name, the same letter for the same attribute
    types: tuple[DataType, ...]  # of the attributes, by letter


def template_of(shape: str, attributes: Attributes) -> tuple[Template, tuple[Path, ...]] | None:
    """A shape's template and the attributes it has names of; None where a name is not known."""
    if _MARK in shape:
        return None
    names: dict[Path, DataType] = {}
    letters: dict[Path, str] = {}
    pieces: list[str] = []
    position = 0
    for match in _NAME.finditer(shape):
        word = match.group()
        if word == QUOTED_HOLE or word in KEYWORDS:
            continue
        after = shape[match.end() : match.end() + 8].lstrip()[:3]
        upper = word.upper()
        if upper in KEYWORDS or after[:1] == "(" or (upper in TYPED_LITERALS and after == QUOTED_HOLE):
            continue
        found = attributes[word]
        if found is None:
            return None
        path, type_ = found
        if path not in names:
            names[path] = type_
            letters[path] = chr(ord("A") + len(letters))
        pieces += [shape[position : match.start()], _MARK, letters[path]]
        position = match.end()
    return Template("".join([*pieces, shape[position:]]), tuple(names.values())), tuple(names)


class Attributes(dict[str, "tuple[Path, DataType] | None"]):
    """The attributes of a domain by the names that filters have written, each found once."""

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self._domain = domain

    def __missing__(self, name: str) -> tuple[Path, DataType] | None:
        try:
            self[name] = self._domain.find(tuple(part.strip("`") for part in re.findall(_PART, name)))
        except DomainError:  # ambiguous
            self[name] = None
        return self[name]


def holes_of(text: str, shape: str, lexed: Lexed) -> dict[int, Hole] | None:
    """The holes of a filter by the columns of its literals; None where scanner and lexer see different literals.

    Next to a point a number's extent depends on its digits (1 . 5 and 1.5), so no hole is there.
    """
    if re.search(r"\.\s*\b0\b|\b0\b\s*\.", shape, re.ASCII):
        return None
    spans = [match.span() for match in _LITERAL.finditer(text)]
    written = {literal.written: i for i, literal in enumerate(lexed.literals)}
    if any(span not in written for span in spans):
        return None
    holes: dict[int, Hole] = {}
    for number, span in enumerate(spans):
        literal = lexed.literals[written[span]]
        before = lexed.before(written[span])
        holes[literal.at] = Hole(number, literal.kind, lowered=before == "ILIKE", escape=before == "ESCAPE")
        sign = lexed.sign_of(written[span])
        if sign is not None:
            holes[sign] = Hole(number, literal.kind, negative=True)
    return holes
