"""Real events against filters as people write them: the matcher, the oracle and Spark say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest

from tidings import Attribute, Domain, Matcher, infer_domain
from tidings.filter.syntax.writer import to_sql
from tidings.filter.tree import Literal
from tidings.model.domain import path_text
from tidings.model.event import read_record
from tidings.model.types import Path as AttributePath
from tidings.testing import brute_force
from tidings.testing import real_data as data
from tidings.testing.random_cases import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, FILTERS = 150, 250
_Loaded = TypeVar("_Loaded")


def load_or_skip(load: Callable[[], _Loaded]) -> _Loaded:
    try:
        return load()
    except data.DataMissing as missing:
        pytest.skip(str(missing))


class Subscribers:
    """Filters that people might write about these events, with the events' own values in them."""

    def __init__(self, seed: int, domain: Domain, events: Iterable[dict[str, Any]], relations: list[str]) -> None:
        self.random = Random(seed)
        self.records = [read_record(event, domain) for event in events]
        self.types = domain.leaves
        self.relations = relations  # of attributes to each other
        self.texts = [path for path, type_ in self.types.items() if type_.name == "string"]
        self.numbers = [path for path, type_ in self.types.items() if type_.is_numeric or type_.is_datetime]
        self.arrays = [path for path, type_ in self.types.items() if type_.name == "array"]

    def filters(self, count: int) -> list[str]:
        return [self.filter() for _ in range(count)]

    def filter(self) -> str:
        joined = self.random.choice([" AND ", " AND ", " OR "]).join(
            self.random.choice(self.kinds)(self) for _ in range(self.random.randint(1, 3))
        )
        return f"NOT ({joined})" if self.random.random() < 0.1 else joined

    def value(self, path: AttributePath) -> Any:
        """A value that an event has; None where few have any."""
        return next((value for _ in range(20) if (value := self.random.choice(self.records)[path]) is not None), None)

    def written(self, value: Any, path: AttributePath) -> str:
        return to_sql(Literal(value, self.types[path]), typed=False)

    def equality(self) -> str:
        path = self.random.choice(self.texts)
        return f"{path_text(path)} {self.random.choice(['=', '<=>', '!='])} {self.written(self.value(path), path)}"

    def choice(self) -> str:
        path = self.random.choice(self.texts)
        values = ", ".join(self.written(self.value(path), path) for _ in range(self.random.randint(1, 5)))
        return f"{path_text(path)} IN ({values})"

    def pattern(self) -> str:
        path = self.random.choice(self.texts)
        text = (self.value(path) or "").replace("\\", "").replace("%", "").replace("_", "")
        start = self.random.randint(0, max(0, len(text) - 2))
        part = text[start : start + self.random.randint(1, 4)].replace("'", "''")
        pattern = self.random.choice(["{}%", "%{}", "%{}%", "_{}%"]).format(part)
        return f"{path_text(path)} {self.random.choice(['LIKE', 'NOT LIKE', 'ILIKE'])} '{pattern}'"

    def limit(self) -> str:
        path = self.random.choice(self.numbers)
        return f"{path_text(path)} {self.random.choice(['<', '<=', '>', '>='])} {self.written(self.value(path), path)}"

    def range(self) -> str:
        path = self.random.choice(self.numbers)
        ends = sorted((self.value(path), self.value(path)), key=lambda end: (end is None, end))
        return "{} BETWEEN {} AND {}".format(path_text(path), *(self.written(end, path) for end in ends))

    def presence(self) -> str:
        path = self.random.choice([*self.texts, *self.numbers, *self.arrays])
        return f"{path_text(path)} IS {self.random.choice(['', 'NOT '])}NULL"

    def member(self) -> str:
        if not self.arrays:
            return self.limit()
        path = self.random.choice(self.arrays)
        element = self.types[path].element
        assert element is not None
        return f"array_contains({path_text(path)}, {to_sql(Literal((self.value(path) or [0])[-1], element))})"

    def relation(self) -> str:
        return self.random.choice(self.relations)

    kinds = (equality, choice, pattern, limit, limit, range, range, presence, member, relation)


def with_gaps(events: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The events, of which every tenth value is missing: quotes and positions are complete as they come."""
    random = Random(seed)
    return [{name: value for name, value in event.items() if random.random() < 0.9} for event in events]


STOCK_RELATIONS = [
    "high > low * 1.1",
    "close >= open",
    "adj_close != close",
    "(high - low) / low > 0.03",
    "close * volume > 1e7",
]
AIRCRAFT_RELATIONS = [
    "abs(vertical_rate) > groundspeed",
    "altitude > groundspeed * 80",
    "length(callsign) < 6",
    "lower(icao24) = icao24",
    "track % 90 < 10",
]
EARTHQUAKE_RELATIONS = [
    "properties.rms > properties.dmin",
    "properties.sig > properties.mag * 100",
    "properties.updated > properties.time",
    "id = properties.code",
    "properties.place RLIKE '^[0-9]+km [NSEW]+ of '",
    "length(properties.place) > 30",
]


def stocks_case(*, given: bool) -> Case:
    table = load_or_skip(data.stocks)
    quotes = Random(1).sample(range(table.num_rows), EVENTS)
    sample = table.take(pa.array(quotes))
    if given:  # prices are decimals, exactly
        names = ("open", "high", "low", "close", "adj_close")
        schema = pa.schema(
            [field.with_type(pa.decimal128(14, 4)) if field.name in names else field for field in sample.schema]
        )
        sample = sample.cast(schema)
        domain = Domain(
            "stocks",
            [
                Attribute("symbol", "string"),
                Attribute("date", "date", min="2015-03-20"),
                *(Attribute(name, "decimal(14,4)", min=0, unit="USD") for name in names),
                Attribute("volume", "bigint"),
            ],
        )
    else:
        domain = infer_domain(table, name="stocks")
    events = with_gaps(sample.to_pylist(), 2)
    return Case(domain, events, Subscribers(3, domain, events, STOCK_RELATIONS).filters(FILTERS))


def aircraft_case(*, given: bool) -> Case:
    events = with_gaps(Random(4).sample(load_or_skip(data.aircraft), EVENTS), 5)
    if given:
        domain = Domain(
            "aircraft",
            [
                Attribute("icao24", "string"),
                Attribute("callsign", "string"),
                Attribute("timestamp", "bigint", unit="ms"),
                Attribute("altitude", "double", unit="ft"),
                Attribute("latitude", "double", min=-90, max=90),
                Attribute("longitude", "double", min=-180, max=180),
                Attribute("groundspeed", "double", unit="kn"),
                Attribute("track", "double", min=0, max=360),
                Attribute("vertical_rate", "double"),
            ],
            indices=[["icao24"], ["latitude", "longitude"]],
        )
    else:
        domain = infer_domain(events, name="aircraft")
    return Case(domain, events, Subscribers(6, domain, events, AIRCRAFT_RELATIONS).filters(FILTERS))


def earthquakes_case(*, given: bool) -> Case:
    features = load_or_skip(data.earthquakes)
    events = Random(7).sample(features, EVENTS)
    if given:
        text = [Attribute(f"properties.{name}", "string") for name in ("place", "magType", "net", "code", "alert")]
        whole = [Attribute(f"properties.{name}", "bigint") for name in ("time", "updated", "sig", "felt", "tsunami")]
        real = [Attribute(f"properties.{name}", "double") for name in ("mag", "dmin", "rms", "gap")]
        coordinates = Attribute("geometry.coordinates", "array<double>", unit="degrees, degrees, km")
        domain = Domain("earthquakes", [Attribute("id", "string"), *text, *whole, *real, coordinates])
    else:
        domain = infer_domain(features, name="earthquakes")
    return Case(domain, events, Subscribers(8, domain, events, EARTHQUAKE_RELATIONS).filters(FILTERS))


CASES = {"stocks": stocks_case, "aircraft": aircraft_case, "earthquakes": earthquakes_case}


@pytest.mark.parametrize("given", [True, False], ids=["given", "inferred"])
@pytest.mark.parametrize("name", CASES)
def test_the_matcher_finds_what_the_oracle_finds_in_real_events(name: str, given: bool) -> None:
    case = CASES[name](given=given)
    subscriptions = dict(enumerate(case.filters))
    expected = brute_force(subscriptions, case.events, case.domain)
    assert Matcher(subscriptions, case.domain).match(case.events).pairs() == expected
    assert len(expected) > EVENTS  # the filters are about these events
    assert len({id_ for _, id_ in expected}) > FILTERS / 2


@pytest.mark.spark
@pytest.mark.parametrize("name", ["stocks", "earthquakes"])
def test_spark_finds_the_same_in_real_events(spark: SparkSession, name: str) -> None:
    from tidings.testing.agreement import compare
    from tidings.testing.fuzz import match_pairs

    case = CASES[name](given=True)
    case = Case(case.domain, case.events[:100], case.filters[:150])
    tally = compare(spark, case, match=match_pairs, compiled=False)
    assert tally.disagreements == [], "\n\n".join(map(str, tally.disagreements[:5]))
    assert tally.refused == tally.listed == 0
    assert tally.true > 0


def test_the_whole_file_of_quotes_is_matched_as_it_comes() -> None:
    table = load_or_skip(data.stocks)
    matches = Matcher({"rises": "close > open", "falls": "close < open", "same": "close = open"}).match(table)
    assert len(matches.pairs()) == table.num_rows


@pytest.mark.parametrize("folder", [None, "", "nowhere"])
def test_without_the_folder_the_tests_skip_and_say_what_is_missing(
    folder: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if folder is None:
        monkeypatch.delenv(data.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(data.VARIABLE, folder and str(tmp_path / folder))
    with pytest.raises(pytest.skip.Exception, match=r"TIDINGS_DATA is .*stocks_us_daily_dev\.csv\.gz"):
        stocks_case(given=False)
