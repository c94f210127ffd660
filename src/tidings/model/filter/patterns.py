"""Patterns over strings: `LIKE` written as a regular expression, and RE2, which runs both."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

MAX_PATTERN_LENGTH = 10_000  # characters
_MAX_PATTERN_BYTES = 1 << 20  # of a compiled pattern with its automata

# Characters, classes and escapes, each maybe repeated, in groups that do not nest: RE2 takes it, and in little memory
# as long as it is short. That saves the compiling, where only a pattern's being one is to be known.
_ATOM = r"(?:[^\\.+*?()|\[\]{}^$]|\.|\\[dDwW.+*?()|\[\]{}^$\\/-]|\[\^?(?:a-z|A-Z|0-9|[A-Za-z0-9_ ])+\])[*+?]?"
PLAIN_PATTERN = rf"^(?s:\^?(?:{_ATOM}|\((?:{_ATOM}|\|)*\)[*+?]?|\|)*\$?)\z"
MAX_PLAIN_LENGTH = 200  # characters


class Pattern(Protocol):
    """A compiled pattern; what `search` gives back is true where there is a match."""

    def search(self, text: str) -> object: ...


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


@lru_cache(maxsize=1024)
def compile_re2(pattern: str) -> Pattern:
    """Compile for RE2, in bounded memory; ValueError with RE2's reason where it cannot."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"the pattern has {len(pattern):,} characters; the limit is {MAX_PATTERN_LENGTH:,}")
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        return cast(Pattern, re2.compile(pattern, options))
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(
            f"RE2 refuses the pattern: {reason.decode() if isinstance(reason, bytes) else reason}"
        ) from None
