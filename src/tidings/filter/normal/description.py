"""A filter's normal form in words that a person can check."""

from __future__ import annotations

from tidings.filter.normal.normal_form import Box, normalise
from tidings.filter.normal.value_sets import Cut, ValueSet, from_ordinal, line
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.syntax.writer import to_sql
from tidings.filter.tree import Literal
from tidings.model.domain import Domain, path_text
from tidings.model.types import DataType

_SHOWN = 8  # intervals of a set, boxes of a filter: the rest is counted


def describe_filter(text: str, domain: Domain) -> str:
    """What a filter asks, box by box: what an index can serve, and what is left to evaluate.

    >>> from tidings import Attribute, Domain
    >>> stocks = Domain("stocks", [Attribute("exchange", "string"), Attribute("price", "double")])
    >>> print(describe_filter("exchange = 'NYSE' AND (price < 8.7 AND price > 8.3 OR price IS NULL)", stocks))
    1 box
      exchange: 'NYSE'
      price: > 8.3 and < 8.7, or NULL
    """
    form = normalise(parse_filter(text, domain))
    if form.never:
        return "never: no event can match"
    if form.always:
        return "always: every event matches"
    lines = [f"{len(form.boxes)} box{'es' * (len(form.boxes) > 1)}"]
    for number, box in enumerate(form.boxes[:_SHOWN]):
        lines += ["  or"] * (number > 0) + _describe_box(box, domain)
    if len(form.boxes) > _SHOWN:
        lines.append(f"  … and {len(form.boxes) - _SHOWN} more")
    return "\n".join(lines)


def _describe_box(box: Box, domain: Domain) -> list[str]:
    lines = [f"  {path_text(path)}: {describe_set(values, domain.leaves[path])}" for path, values in box.sets.items()]
    if box.residual is not None:
        lines.append(f"  to evaluate: {to_sql(box.residual, typed=False)}")
    return lines


def describe_set(values: ValueSet, type_: DataType) -> str:
    """The values of a set, as a person would list them."""
    parts = [_describe_interval(low, high, type_) for low, high in values.intervals[:_SHOWN]]
    if len(values.intervals) > _SHOWN:
        parts.append(f"{len(values.intervals) - _SHOWN} more")
    if values.intervals == (line(type_),):
        parts = ["any value"]
    if values.null:
        parts.append("NULL")
    return ", or ".join(parts)


def _describe_interval(low: Cut, high: Cut, type_: DataType) -> str:
    first, last = line(type_)
    if type_.name == "string":
        if low[0] == high[0]:
            return _show(low[0], type_)
        lower = "" if low == first else f"{'>=' if low[1] == 0 else '>'} {_show(low[0], type_)}"
        upper = "" if high == last else f"{'<' if high[1] == 0 else '<='} {_show(high[0], type_)}"
    else:
        if high - low == 1:
            return _show(low, type_)
        lower = "" if low == first else _bound((">=", low), (">", low - 1), type_)
        upper = "" if high == last else _bound(("<=", high - 1), ("<", high), type_)
    return " and ".join(part for part in (lower, upper) if part)


def _bound(inner: tuple[str, int], outer: tuple[str, int], type_: DataType) -> str:
    """Of `>= 8.300000000000002` and `> 8.3`, which are the same, the one that was meant."""
    bounds = [(sign, _show(place, type_)) for sign, place in (inner, outer)]
    sign, value = bounds[0] if type_.is_integral else min(bounds, key=lambda bound: len(bound[1]))
    return f"{sign} {value}"


def _show(place: Cut, type_: DataType) -> str:
    if isinstance(place, bytes):
        return to_sql(Literal(place.decode(errors="backslashreplace"), type_))
    return to_sql(Literal(from_ordinal(place, type_), type_), typed=False)
