"""What a filter means, evaluated anew: a predicate that the workload writes beside the filter's text.

    ["and", [">", "price", 10], ["in", "symbol", ["A", "B"]]]

A missing or null attribute makes a comparison unknown (None), and "and", "or", "not" are SQL's over three values.
A workload whose filters say more adds a word of its own to MEANINGS.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

Predicate = list[Any]

_COMPARISONS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

MEANINGS: dict[str, Callable[[list[Any], Mapping[str, Any]], bool | None]] = {}  # word → worth of what follows it


def holds(predicate: Predicate, record: Mapping[str, Any]) -> bool:
    """Whether an event's record satisfies a filter: unknown is no."""
    return _worth(predicate, record) is True


def sql(predicate: Predicate) -> str:
    """The filter's text, for a predicate of the workload: written once, it cannot say two things."""
    match predicate:
        case ["true"]:
            return "TRUE"
        case ["not", inner]:
            return f"NOT ({sql(inner)})"
        case ["and" | "or" as word, *parts]:
            return f" {word.upper()} ".join(f"({sql(part)})" for part in parts)
        case ["null", name]:
            return f"{name} IS NULL"
        case ["in", name, values]:
            return f"{name} IN ({', '.join(map(_literal, values))})"
        case ["like", name, pattern]:
            return f"{name} LIKE {_literal(pattern)}"
        case [comparison, name, value] if comparison in _COMPARISONS:
            return f"{name} {comparison} {_literal(value)}"
    raise ValueError(f"no predicate: {predicate}")


def _worth(predicate: Predicate, record: Mapping[str, Any]) -> bool | None:
    match predicate:
        case ["true"]:
            return True
        case ["not", inner]:
            worth = _worth(inner, record)
            return None if worth is None else not worth
        case ["and", *parts]:
            found = [_worth(part, record) for part in parts]
            return False if False in found else None if None in found else True
        case ["or", *parts]:
            found = [_worth(part, record) for part in parts]
            return True if True in found else None if None in found else False
        case ["null", name]:
            return record.get(name) is None
        case ["in", name, values]:
            value = record.get(name)
            return None if value is None else value in values
        case [comparison, name, constant] if comparison in _COMPARISONS:
            value = record.get(name)
            return None if value is None else bool(_COMPARISONS[comparison](value, constant))
        case ["like", name, pattern]:
            value = record.get(name)
            return None if value is None else _like(value, pattern)
        case [word, *rest] if word in MEANINGS:
            return MEANINGS[word](rest, record)
    raise ValueError(f"no predicate: {predicate}")


def _like(text: str, pattern: str) -> bool:
    """`%` is any text, `_` any character; nothing is escaped. The last `%` is the only one to go back to."""
    at = of = 0
    star, resume = -1, 0
    while at < len(text):
        if of < len(pattern) and pattern[of] == "%":
            star, resume = of, at
            of += 1
        elif of < len(pattern) and pattern[of] in ("_", text[at]):
            at, of = at + 1, of + 1
        elif star >= 0:
            resume += 1
            at, of = resume, star + 1
        else:
            return False
    return all(character == "%" for character in pattern[of:])


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)
