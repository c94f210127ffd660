"""The demo's subscribers: people and teams who wait for flights, and the filters they would write.

Filters are drawn, with a seed, from the flights themselves, so that they ask for routes, carriers,
aircraft and times that exist, as often as those do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa

FIRST_NAMES = """
    ada amir ana anouk ben bea carla chen dara diego elif emma eva femi finn gita hana hugo ines ivan jana jin jonas kai
    kofi lara leo lin luca maja mara mei mila musa nadia nils noor olga omar pia priya raj rosa sam sara sofia tara theo
    tom uma vera wen yara yusuf zoe
    """.split()
LAST_NAMES = """
    abe adams baker berg blum boateng bruno chandra costa cruz diaz dubois eriksen evans fischer garcia gupta haas
    hansen ito jansen jones kaya keita kim klein kovac lang lopez martin meyer moreau nakai novak okafor ortiz park
    patel peters popov quinn reyes rossi sato schmidt silva singh sousa stone tanaka torres vega weber wolf wong young
    """.split()
AIRPORTS = ("EWR", "JFK", "LGA")


@dataclass(frozen=True, slots=True)
class FlightFilter:
    """A subscriber, the purpose in a word, and the filter."""

    subscriber: str
    purpose: str
    filter: str

    @property
    def id(self) -> str:
        return f"{self.subscriber.split('@')[0]}/{self.purpose}"


def flight_filters(flights: pa.Table, count: int, seed: int) -> list[FlightFilter]:
    """`count` filters, each of another subscriber; the same seed gives the same ones."""
    random = Random(seed)
    rows = flights.select(_DRAWN_FROM).to_pylist()
    people = _people(random)
    purposes = random.choices(list(_PURPOSES), weights=[weight for weight, _ in _PURPOSES.values()], k=count)
    return [
        FlightFilter(next(people), purpose, _PURPOSES[purpose][1](random, random.choice(rows), rows))
        for purpose in purposes
    ]


def _people(random: Random) -> Iterator[str]:
    names = [f"{first}.{last}" for first, last in product(FIRST_NAMES, LAST_NAMES)]
    random.shuffle(names)
    for round_ in range(1, 1_000_000):
        for name in names:
            yield f"{name}{round_ if round_ > 1 else ''}@example.org"


Row = dict[str, Any]
_DRAWN_FROM = ["departure", "day", "hour", "carrier", "flight", "tailnum", "origin", "dest", "distance"]


def _waiting(random: Random, row: Row, rows: list[Row]) -> str:
    """Someone at the airport, from some time before a departure until some time after it."""
    start, end = row["departure"] - timedelta(hours=random.randint(1, 3)), row["departure"] + timedelta(hours=2)
    between = f"departure BETWEEN {_instant(start)} AND {_instant(end)}"
    return f"origin = '{row['origin']}' AND dest = '{row['dest']}' AND {between}"


def _booked(random: Random, row: Row, rows: list[Row]) -> str:
    return f"carrier = '{row['carrier']}' AND flight = {row['flight']} AND month = 2 AND day = {row['day']}"


def _commute(random: Random, row: Row, rows: list[Row]) -> str:
    delay = random.choice((15, 20, 30, 45, 60))
    return f"origin = '{row['origin']}' AND dest = '{row['dest']}' AND arr_delay > {delay}"


def _pickup(random: Random, row: Row, rows: list[Row]) -> str:
    """Someone who fetches guests: from any of New York's airports but one, and not at night."""
    hour = random.randint(6, 10)
    return f"dest = '{row['dest']}' AND origin != '{random.choice(AIRPORTS)}' AND NOT (hour < {hour} OR hour > 21)"


def _spotter(random: Random, row: Row, rows: list[Row]) -> str:
    tail = row["tailnum"]
    if tail is None:
        return "tailnum IS NULL AND dep_delay IS NOT NULL"
    if random.random() < 0.7:
        return f"tailnum = '{tail}'"
    return f"tailnum LIKE '{tail[:3]}%' AND distance >= {row['distance'] // 100 * 100}"


def _fan(random: Random, row: Row, rows: list[Row]) -> str:
    return f"carrier = '{row['carrier']}' AND dest = '{row['dest']}' AND day >= {row['day']}"


def _press(random: Random, row: Row, rows: list[Row]) -> str:
    delay = random.choice((180, 240, 300, 360, 480))
    return f"dep_delay >= {delay} OR (dep_delay IS NULL AND dest = '{row['dest']}' AND day = {row['day']})"


def _operations(random: Random, row: Row, rows: list[Row]) -> str:
    carriers = sorted({row["carrier"], *(random.choice(rows)["carrier"] for _ in range(2))})
    chosen = ", ".join(f"'{carrier}'" for carrier in carriers)
    delay = random.choice((60, 90, 120))
    late = f"(dep_delay > {delay} OR dep_delay IS NULL)"
    return f"carrier IN ({chosen}) AND origin = '{row['origin']}' AND {late} AND day = {row['day']}"


def _recovery(random: Random, row: Row, rows: list[Row]) -> str:
    """Flights that made up time in the air: one attribute against another."""
    minutes = random.choice((20, 25, 30))
    return f"dest = '{row['dest']}' AND dep_delay > {minutes} AND arr_delay < dep_delay - {minutes}"


def _instant(time: datetime) -> str:
    return f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S}Z'"


# What people want, how many in a hundred of them, and the filter they write.
_PURPOSES: dict[str, tuple[int, Callable[[Random, Row, list[Row]], str]]] = {
    "waiting": (24, _waiting),
    "booked": (22, _booked),
    "commute": (14, _commute),
    "pickup": (8, _pickup),
    "spotter": (12, _spotter),
    "fan": (6, _fan),
    "press": (2, _press),
    "operations": (8, _operations),
    "recovery": (4, _recovery),
}
