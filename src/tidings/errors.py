"""What can go wrong, one class for each party that can correct it.

`DomainError` is for those who describe events, `FilterError` for those who write filters, `EventError` for publishers,
`SubscriptionError` for those who keep a table of subscriptions. A bug of Tidings itself is an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TidingsError(ValueError):
    """The base of every error that a caller can cause and correct."""


class DomainError(TidingsError):
    """A domain, an attribute or a type is invalid."""


class FilterError(TidingsError):
    """A filter is not in the language, or does not fit its domain.

    `reason` is the sentence without its place, `column` the 1-based character in the filter's
    text (None if the whole text is meant), `hint` what to do instead.
    """

    def __init__(self, reason: str, *, column: int | None = None, hint: str = "") -> None:
        self.reason = reason
        self.column = column
        self.hint = hint
        place = f" at column {column}" if column is not None else ""
        super().__init__(f"filter: {reason}{place}" + (f"; {hint}" if hint else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return (_filter_error, (self.reason, self.column, self.hint))


def _filter_error(reason: str, column: int | None, hint: str) -> FilterError:
    return FilterError(reason, column=column, hint=hint)


class EventError(TidingsError):
    """An event does not fit its domain; names the row and the attribute if known."""

    def __init__(self, reason: str, *, row: int | None = None, attribute: str | None = None) -> None:
        self.reason = reason
        self.row = row
        self.attribute = attribute
        where = [f"row {row}"] if row is not None else []
        where += [f"attribute '{attribute}'"] if attribute is not None else []
        super().__init__(f"event: {', '.join(where) + ': ' if where else ''}{reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_event_error, (self.reason, self.row, self.attribute))


def _event_error(reason: str, row: int | None, attribute: str | None) -> EventError:
    return EventError(reason, row=row, attribute=attribute)


class SubscriptionError(TidingsError):
    """A subscription, or a table of them, is invalid: ids, validity, unknown ids."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The hint for a misspelt name: the nearest known one, else all known names."""
    names = sorted(set(known))
    folded = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{folded[near[0]]}'?"
    if not names:
        return "there are none"
    shown = ", ".join(names[:12])
    return f"there are {shown}" + (f" and {len(names) - 12} more" if len(names) > 12 else "")
