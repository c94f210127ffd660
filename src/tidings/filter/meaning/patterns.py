"""Patterns over strings: `RLIKE` and `LIKE` with `_` run by RE2, `LIKE` with `%` alone by looking for its pieces."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import re2

MAX_PATTERN_LENGTH = 10_000  # characters of an RLIKE pattern
_MAX_PATTERN_BYTES = 1 << 20  # of a compiled pattern with its automata: enough for every filter that is not too costly
_WILDCARD_SIZE = 8  # instructions that RE2 has for `%` or `_`, at most

# Characters, classes and escapes, each maybe repeated, in groups that do not nest: RE2 takes it, and in little memory
# as long as it is short. That saves the compiling, where only a pattern's being one is to be known.
_ATOM = r"(?:[^\\.+*?()|\[\]{}^$]|\.|\\[dDwW.+*?()|\[\]{}^$\\/-]|\[\^?(?:a-z|A-Z|0-9|[A-Za-z0-9_ ])+\])[*+?]?"
PLAIN_PATTERN = rf"^(?s:\^?(?:{_ATOM}|\((?:{_ATOM}|\|)*\)[*+?]?|\|)*\$?)\z"
# Filters that are read by plans or by predicates, without a full parse, have so few and so short patterns that they
# cannot cost too much; any others are parsed.
MAX_SHORT_LENGTH = 200  # characters
MAX_SHORT_SIZE = 3_000  # instructions that a plain pattern of so many characters has, at most
MAX_SHORT_PATTERNS = 5
MAX_ARROW_LIKE = 200  # the size of a `LIKE` pattern that Arrow, which makes RE2 of it, runs in time for a long text


class Finder(Protocol):
    """A compiled pattern; what `search` gives back is true where there is a match."""

    def search(self, text: str) -> object: ...


class Pattern(Finder, Protocol):
    """A pattern compiled by RE2."""

    @property
    def programsize(self) -> int: ...

    @property
    def reverseprogramsize(self) -> int: ...


@lru_cache(maxsize=4096)
def like_to_re2(pattern: str, escape: str = "\\") -> str:
    """The anchored RE2 expression of a `LIKE` pattern; ValueError where Spark refuses the pattern."""
    if len(escape) != 1 or escape > "\uffff":  # one UTF-16 unit, as in Spark
        raise ValueError(f"the escape of a LIKE pattern is one character, not {escape!r}")
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError(f"the LIKE pattern {pattern!r} ends with its escape character {escape!r}")
            if escaped not in ("%", "_", escape):
                raise ValueError(
                    f"in the LIKE pattern {pattern!r} the escape character {escape!r} stands before {escaped!r}; "
                    "it may stand before '%', '_' and itself only"
                )
            parts.append(re2.escape(escaped))
        elif character == "%":
            parts.append(".*")
        elif character == "_":
            parts.append(".")
        else:
            parts.append(re2.escape(character))
    return f"(?s)\\A{''.join(parts)}\\z"


def contained_text(pattern: str, escape: str = "\\") -> str | None:
    """The text that a `LIKE` pattern wants anywhere in a value, where it wants nothing else: 'x' of '%x%'."""
    inner = pattern[1:-1]
    plain = len(pattern) > 1 and pattern[0] == pattern[-1] == "%" != escape
    return inner if plain and not {"%", "_", escape} & set(inner) else None


@lru_cache(maxsize=4096)
def compile_like(pattern: str, escape: str = "\\") -> Finder:
    """Compile a `LIKE` pattern, however long; ValueError where Spark refuses it."""
    pieces = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            pieces[-1] += next(characters, "")
        elif character == "%":
            pieces.append("")
        elif character == "_":
            return compile_re2(like_to_re2(pattern, escape))
        else:
            pieces[-1] += character
    like_to_re2(pattern, escape)
    return _Pieces(pieces)


class _Pieces:
    """The texts between the `%` of a pattern, found one after the other: in linear time, unlike by an automaton."""

    __slots__ = ("_first", "_last", "_middle")

    def __init__(self, pieces: list[str]) -> None:
        self._first, *rest = pieces
        self._last = rest.pop() if rest else None  # None: nothing but the first
        self._middle = [piece for piece in rest if piece]

    def search(self, text: str) -> bool:
        if self._last is None:
            return text == self._first
        if not text.startswith(self._first) or not text.endswith(self._last):
            return False
        at, end = len(self._first), len(text) - len(self._last)
        for piece in self._middle:
            found = text.find(piece, at, max(at, end))
            if found < 0:
                return False
            at = found + len(piece)
        return at <= end


def like_size(pattern: str) -> int:
    """What a `LIKE` pattern counts: its characters, or with `_` the instructions that RE2 has for it, at most."""
    if "_" not in pattern:
        return len(pattern)
    return len(pattern.encode()) + _WILDCARD_SIZE * (pattern.count("%") + pattern.count("_"))


@lru_cache(maxsize=1024)
def rlike_size(pattern: str) -> int:
    """The instructions that RE2 has for an `RLIKE` pattern, with its groups, which Arrow keeps."""
    compiled = _compiled(pattern, captures=True) if "(" in pattern else compile_re2(pattern)
    return max(compiled.programsize, compiled.reverseprogramsize)


def check_rlike(pattern: str) -> None:
    """Raise ValueError unless the pattern can be run, by RE2 and by the RE2 that Arrow has."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"the pattern has {len(pattern):,} characters; the limit is {MAX_PATTERN_LENGTH:,}")
    rlike_size(pattern)
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:  # another version, which may know less
        raise ValueError(f"RE2 refuses the pattern: {error}") from None


def is_short_rlike(pattern: str) -> bool:
    """Whether an `RLIKE` pattern can be run and is as small as those that no filter needs a full parse for."""
    try:
        check_rlike(pattern)
    except ValueError:
        return False
    return len(pattern) <= MAX_SHORT_LENGTH and rlike_size(pattern) <= MAX_SHORT_SIZE


@lru_cache(maxsize=1024)
def compile_re2(pattern: str) -> Pattern:
    """Compile for RE2, in bounded memory; ValueError with RE2's reason where it cannot."""
    return _compiled(pattern, captures=False)


def _compiled(pattern: str, *, captures: bool) -> Pattern:
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_BYTES
    options.log_errors = False
    options.never_capture = not captures
    try:
        return cast(Pattern, re2.compile(pattern, options))
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(
            f"RE2 refuses the pattern: {reason.decode() if isinstance(reason, bytes) else reason}"
        ) from None
