"""How many filters a second does one core compile into columns?

Expected: at least 50,000 of a shape seen before, also where what no index can serve has other
literals in every filter, and 2,000 where every shape is new. The limit of the first is two passes
of a regular expression over the text and one that takes the literals out, and where every filter
has a pattern of its own a tree for each; of the second, tokens and logic in Python, and the SQL
parser where the predicates are new too.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa

from benchmarks.options import Options
from benchmarks.record import cpu_seconds
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.syntax.parser import parse_shape
from tidings.model.domain import Attribute, Domain
from tidings.testing import workloads

SEED = 1
SAME_SHAPES = 50_000
NEW_SHAPES = 2_000

DOMAIN = Domain(
    "stocks",
    [
        Attribute(name, type_)
        for name, type_ in {
            "symbol": "string", "exchange": "string", "price": "double", "high": "double", "low": "double",
            "volume": "bigint", "day": "date", "fee": "decimal(10,2)",
        }.items()
    ],
)  # fmt: skip

# Each is one shape; k makes the literals differ.
SHAPES = {
    "and": lambda k: f"symbol = 'S{k}' AND price > {k % 97}.{k % 10} AND price < {k % 97 + 5} AND volume >= {k}",
    "or": lambda k: f"(symbol = 'S{k}' OR price BETWEEN -{k % 97}.5 AND {k % 97 + 5}) AND volume != {k}",
    "in": lambda k: f"symbol IN ('S{k}', 'S{k + 3}', 'OIL') AND NOT volume IN ({k}, {k % 7}) AND high > low",
    "like": lambda k: f"symbol LIKE 'S{k}%' OR fee = {k % 100}.25 OR day >= '2020-01-{k % 28 + 1:02d}'",
}

# As those, with residuals that have other literals in nearly every filter.
RESIDUALS = {
    "product": lambda k: f"symbol = 'S{k}' AND high > low * {1 + k / SAME_SHAPES:.6f}",
    "sum": lambda k: f"high + {k / 100:.2f} > low AND volume > {k}",
    "decimal": lambda k: f"fee * {k % 500 / 100 + 1:.2f} > {k}.25",
    "remainder": lambda k: f"volume % {k % 97 + 2} = {k % 13} AND price < {k}.5",
    "lower": lambda k: f"lower(symbol) = 'x{k}'",
    "contains": lambda k: f"price > {k} AND symbol LIKE '%a{k}%'",
    "ilike": lambda k: f"symbol ILIKE 'Ab{k}%'",
    "rlike": lambda k: f"symbol RLIKE '^a{k}.*[a-z]+'",
    "in an or": lambda k: f"volume > {k} AND (lower(symbol) = 's{k}' OR high + {k % 100}.5 > low OR fee = {k % 90}.25)",
}


def run(options: Options) -> Iterator[dict[str, Any]]:
    """Rows of filters a second, each checked against the full parse before it is timed."""
    count = SAME_SHAPES // 10 if options.quick else SAME_SHAPES
    for name, shape in SHAPES.items():
        yield _row(f"one shape: {name}", pa.array([shape(k) for k in range(count)]), DOMAIN)
    for name, shape in RESIDUALS.items():
        yield _row(f"one shape, other residuals: {name}", pa.array([shape(k) for k in range(count)]), DOMAIN)
    for name in options.workloads:
        workload = workloads.WORKLOADS[name](subscriptions=count, events=1)
        yield _row(f"workload: {name}", workload.filters, workload.domain)
    yield _row("every shape new", pa.array(list(_new_shapes())), DOMAIN, forget=True)


def _row(case: str, filters: Any, domain: Domain, *, forget: bool = False) -> dict[str, Any]:
    sample = filters[:200]
    planned, full = (compile_filters(sample, domain, plans=plans) for plans in (True, False))
    assert planned.box_filter.tolist() == full.box_filter.tolist()
    for number, other in zip(planned.residual_of, full.residual_of, strict=True):
        assert number < 0 or planned.residuals[number] == full.residuals[other]

    def work() -> None:
        if forget:
            parse_shape.cache_clear()
        compile_filters(filters, domain)

    seconds, spread = cpu_seconds(work)
    return {
        "case": case,
        "filters": len(filters),
        "seed": SEED,
        "filters_per_core_second": round(len(filters) / seconds),
        "spread": round(spread, 2),
        "example": filters[0].as_py(),
    }


def _new_shapes() -> Iterator[str]:
    """Filters of which no two share a shape: three to five predicates, nested at random."""
    random = Random(SEED)
    predicates = [
        "symbol = 'S{}'", "price > {}.5", "price < {}", "volume >= {}", "low <= high * 1.5", "NOT fee = {}",
        "symbol IN ('a', 'b{}')", "exchange LIKE 'N{}%'", "day > '2020-01-01'", "high IS NOT NULL",
    ]  # fmt: skip
    seen: set[tuple[str, ...]] = set()
    while len(seen) < NEW_SHAPES:
        text = ""
        structure = []
        for position in range(random.randint(3, 5)):
            predicate = random.choice(predicates)
            joint = random.choice((" AND ", " OR "))
            nested = random.random() < 0.5
            structure += [predicate, joint, str(nested)]
            text = f"{'(' + text + ')' if nested else text}{joint}{predicate}" if position else predicate
        if tuple(structure) not in seen:
            seen.add(tuple(structure))
            yield text.format(*([len(seen)] * text.count("{}")))
