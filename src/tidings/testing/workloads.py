"""The workloads that benchmarks and experiments name, each defined once, so that figures compare.

bluedove   boxes around hot spots in four dimensions, after BlueDove (Li et al., 2011)
alerts     what monitoring looks like: equality on skewed strings, narrow ranges on numbers
strings    four equalities among twelve skewed string attributes
mixed      all of these, with OR, NOT, IN, LIKE, IS NULL, residuals and missing values

Subscriptions come from seed 1 and events from seed 2. A subscription's id is its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.model.domain import Attribute, Domain
from tidings.model.types import DOUBLE, STRING

Texts: TypeAlias = Any  # a pyarrow array of strings
Numbers: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]

SUBSCRIPTION_SEED, EVENT_SEED = 1, 2
HOT_SPOTS = (0.0, 333.0, 667.0, 1000.0)
_DIMENSIONS = "abcd"
_ZIPF_EXPONENT = 1.1
_TEXT_SIZES = {f"c{i}": 1_000 if i < 5 else 10_000 for i in range(10)} | {f"s{i}": 1_000 for i in range(12)}
_C = [f"c{i}" for i in range(10)]
_N = [f"n{i}" for i in range(10)]
_S = [f"s{i}" for i in range(12)]


@dataclass(frozen=True, eq=False)
class Workload:
    name: str
    domain: Domain
    filters: Texts
    events: Any  # a pyarrow table


def bluedove(
    subscriptions: int = 40_000,
    events: int = 10_000,
    *,
    sigma: float = 250,
    dimensions: int = 4,
    adverse: bool = False,
    width: float = 250,
) -> Workload:
    """Ranges of a width around centres drawn near one hot spot a dimension; events uniform, or as the centres are."""
    rng, event_rng = np.random.default_rng(SUBSCRIPTION_SEED), np.random.default_rng(EVENT_SEED)
    names = _DIMENSIONS[:dimensions]
    conjuncts = []
    for name, hot_spot in zip(names, HOT_SPOTS, strict=False):
        centres = _centres(rng, subscriptions, hot_spot, sigma)
        conjuncts.append(_range(name, np.maximum(0, centres - width / 2), np.minimum(1000, centres + width / 2), 3))
    columns: dict[str, Any] = {
        name: np.round(
            _centres(event_rng, events, hot_spot, sigma) if adverse else event_rng.uniform(0, 1000, events), 3
        )
        for name, hot_spot in zip(names, HOT_SPOTS, strict=False)
    }
    return Workload("bluedove", _domain("bluedove", names), _joined(conjuncts, " AND "), pa.table(columns))


def alerts(subscriptions: int = 1_000_000, events: int = 10_000) -> Workload:
    """Three attributes each: one or two strings by equality, the rest numbers by a range 0.01 to 0.05 wide."""
    rng, event_rng = np.random.default_rng(SUBSCRIPTION_SEED), np.random.default_rng(EVENT_SEED)
    return Workload(
        "alerts",
        _domain("alerts", _C, _N),
        _alert_filters(rng, subscriptions),
        pa.table(_event_columns(event_rng, events, _C, _N)),
    )


def strings(subscriptions: int = 1_000_000, events: int = 10_000) -> Workload:
    """Four equalities on distinct attributes of twelve."""
    rng, event_rng = np.random.default_rng(SUBSCRIPTION_SEED), np.random.default_rng(EVENT_SEED)
    return Workload(
        "strings",
        _domain("strings", _S),
        _string_filters(rng, subscriptions),
        pa.table(_event_columns(event_rng, events, _S)),
    )


def mixed(subscriptions: int = 200_000, events: int = 10_000, *, missing: float = 0.05) -> Workload:
    """40 % alerts, 20 % boxes on n0 to n3, 20 % strings, 10 % other logic, 10 % residuals, in random order."""
    rng, event_rng = np.random.default_rng(SUBSCRIPTION_SEED), np.random.default_rng(EVENT_SEED)
    kinds = rng.choice(5, subscriptions, p=[0.4, 0.2, 0.2, 0.1, 0.1])
    makers: list[Callable[[np.random.Generator, int], Texts]] = [
        _alert_filters,
        _box_filters,
        _string_filters,
        _logic_filters,
        _residual_filters,
    ]
    made = pa.concat_arrays([maker(rng, int((kinds == kind).sum())) for kind, maker in enumerate(makers)])
    # The filters lie kind by kind; each takes the next of its own kind.
    places = np.empty(subscriptions, np.int64)
    places[np.argsort(kinds, kind="stable")] = np.arange(subscriptions)
    columns = _event_columns(event_rng, events, [*_C, *_S], _N)
    columns = {
        name: pc.if_else(pa.array(event_rng.random(events) < missing), pa.scalar(None, column.type), column)
        for name, column in columns.items()
    }
    return Workload("mixed", _domain("mixed", [*_C, *_S], _N), made.take(pa.array(places)), pa.table(columns))


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "bluedove": bluedove,
    "alerts": alerts,
    "strings": strings,
    "mixed": mixed,
}


def _domain(name: str, *groups: Any) -> Domain:
    attributes = [attribute for group in groups for attribute in group]
    return Domain(name, [Attribute(given, STRING if given in _TEXT_SIZES else DOUBLE) for given in attributes])


# ---------------------------------------------------------------------- events


def _event_columns(
    rng: np.random.Generator, count: int, texts: list[str], numbers: list[str] | None = None
) -> dict[str, Any]:
    columns: dict[str, Any] = {name: _values(_zipf(rng, _TEXT_SIZES[name], count)) for name in texts}
    return columns | {name: pa.array(rng.random(count)) for name in numbers or ()}


def _zipf(rng: np.random.Generator, size: int, count: int) -> Counts:
    """Ranks 1 to `size`, the k-th with probability proportional to k to the power of -1.1."""
    weights = np.arange(1, size + 1) ** -_ZIPF_EXPONENT
    cumulative = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(cumulative, rng.random(count), side="right"), size - 1) + 1


def _centres(rng: np.random.Generator, count: int, hot_spot: float, sigma: float) -> Numbers:
    """Normal around the hot spot, redrawn until in [0, 1000)."""
    centres = rng.normal(hot_spot, sigma, count)
    while (outside := np.flatnonzero((centres < 0) | (centres >= 1000))).size:
        centres[outside] = rng.normal(hot_spot, sigma, outside.size)
    return centres


# ---------------------------------------------------------------------- filters


def _alert_filters(rng: np.random.Generator, count: int) -> Texts:
    first, second = _distinct(rng, len(_C), 2, count)
    low, high = _distinct(rng, len(_N), 2, count)
    equality, other_equality = _equalities(rng, _C, first), _equalities(rng, _C, second)
    ranges, other_ranges = _narrow_range(rng, low), _narrow_range(rng, high)
    two_texts = pa.array(rng.random(count) < 0.5)
    return _joined([equality, pc.if_else(two_texts, other_equality, other_ranges), ranges], " AND ")


def _string_filters(rng: np.random.Generator, count: int) -> Texts:
    return _joined([_equalities(rng, _S, chosen) for chosen in _distinct(rng, len(_S), 4, count)], " AND ")


def _box_filters(rng: np.random.Generator, count: int) -> Texts:
    """As bluedove, on the unit cube."""
    conjuncts = []
    for name, hot_spot in zip(_N, HOT_SPOTS, strict=False):
        centres = _centres(rng, count, hot_spot, 250)
        conjuncts.append(_range(name, np.maximum(0, centres - 125) / 1000, np.minimum(1000, centres + 125) / 1000, 6))
    return _joined(conjuncts, " AND ")


def _logic_filters(rng: np.random.Generator, count: int) -> Texts:
    """OR, NOT, IN, a prefix by LIKE and IS NULL in turn, each with a narrow range beside it."""
    first, second = _distinct(rng, len(_C), 2, count)
    one, other = _equalities(rng, _C, first), _equalities(rng, _C, second)
    name = _names(_C).take(pa.array(first))
    ranks = [_quoted(_zipf(rng, 1_000, count)) for _ in range(3)]
    prefix = _text(rng.integers(1, 100, count))
    forms = [
        _joined([_literally("("), one, _literally(" OR "), other, _literally(")")], ""),
        _joined([_literally("NOT ("), one, _literally(")")], ""),
        _joined([name, _literally(" IN ("), _joined(ranks, ", "), _literally(")")], ""),
        _joined([name, _literally(" LIKE 'v"), prefix, _literally("%'")], ""),
        _joined([name, _literally(" IS NULL")], ""),
    ]
    chosen = _narrow_range(rng, rng.integers(0, len(_N), count))
    return _joined([_in_turn(forms, count), chosen], " AND ")


def _residual_filters(rng: np.random.Generator, count: int) -> Texts:
    """One attribute against another, and a text within a text: what no index of values finds, beside what one does."""
    left, right = _distinct(rng, len(_N), 2, count)
    text = _names(_C).take(pa.array(rng.integers(0, len(_C), count)))
    digit = _text(rng.integers(0, 10, count))
    forms = [
        _joined(
            [
                _names(_N).take(pa.array(left)),
                _literally(" > "),
                _names(_N).take(pa.array(right)),
                _literally(" * 1.5"),
            ],
            "",
        ),
        _joined([text, _literally(" LIKE '%"), digit, _literally("%'")], ""),
    ]
    beside = _equalities(rng, _C, rng.integers(0, len(_C), count))
    return _joined([_in_turn(forms, count), beside], " AND ")


def _distinct(rng: np.random.Generator, size: int, wanted: int, count: int) -> list[Counts]:
    """`wanted` different numbers below `size` for each of `count`, all choices equally likely."""
    ranked = np.argpartition(rng.random((count, size)), wanted - 1, axis=1)[:, :wanted]
    return [np.ascontiguousarray(column, np.int64) for column in ranked.T]


def _equalities(rng: np.random.Generator, names: list[str], chosen: Counts) -> Texts:
    sizes = np.array([_TEXT_SIZES[name] for name in names])[chosen]
    ranks = np.empty(chosen.size, np.int64)
    for size in np.unique(sizes):
        mask = sizes == size
        ranks[mask] = _zipf(rng, int(size), int(mask.sum()))
    return _joined([_names(names).take(pa.array(chosen)), _quoted(ranks)], " = ")


def _narrow_range(rng: np.random.Generator, chosen: Counts) -> Texts:
    width = rng.uniform(0.01, 0.05, chosen.size)
    low = rng.random(chosen.size) * (1 - width)
    return _range(_names(_N).take(pa.array(chosen)), low, low + width, 6)


def _range(name: Any, low: Numbers, high: Numbers, digits: int) -> Texts:
    name = _literally(name) if isinstance(name, str) else name
    return _joined(
        [
            name,
            _literally(" >= "),
            _decimal(low, digits),
            _literally(" AND "),
            name,
            _literally(" < "),
            _decimal(high, digits),
        ],
        "",
    )


# ---------------------------------------------------------------------- columns of text


def _names(names: list[str]) -> Texts:
    return pa.array(names)


def _literally(text: str) -> Any:
    return pa.scalar(text)


def _text(numbers: Counts) -> Texts:
    return pa.array(numbers).cast(pa.string())


def _values(ranks: Counts) -> Texts:
    return _joined([_literally("v"), _text(ranks)], "")


def _quoted(ranks: Counts) -> Texts:
    return _joined([_literally("'v"), _text(ranks), _literally("'")], "")


def _decimal(numbers: Numbers, digits: int) -> Texts:
    """Numbers, none negative and none that takes more than six digits in all, rounded to so many after the point."""
    return _decimals(digits).take(pa.array(np.rint(numbers * 10**digits).astype(np.int64)))


@lru_cache(maxsize=2)
def _decimals(digits: int) -> Texts:
    """All of them, in order: to look a text up is faster than to make it."""
    whole, rest = np.divmod(np.arange(1_000_001), 10**digits)
    return _joined([_text(whole), pc.utf8_lpad(_text(rest), digits, "0")], ".")


def _joined(parts: list[Any], separator: str) -> Texts:
    return pc.binary_join_element_wise(*parts, separator)


def _in_turn(forms: list[Texts], count: int) -> Texts:
    """The first form for the first row, the second for the second, and round again."""
    return pc.choose(pa.array(np.arange(count) % len(forms)), *forms)
