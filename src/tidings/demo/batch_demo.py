"""`tidings demo`: matches a month of real flights with a few thousand filters, and shows who gets what and why.

`run` loads, compiles, matches, and shows who gets what; it needs no configuration and no server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import tidings
from tidings.demo.flights import in_a_line, load_flights
from tidings.demo.people import FlightFilter, flight_filters
from tidings.matching.explain.explanation import Explanation
from tidings.model.infer import infer_domain

SUBSCRIBERS = 3000
SEED = 2013
EVENTS_PER_BATCH = 2500
BLIZZARD_DAY = 8
YOU = "you"
_NEXT = (
    ("Be a subscriber yourself", "tidings demo --filter \"dest = 'HNL' OR dep_delay > 600\""),
    (
        "Ask why an event of your own does not match",
        """tidings explain "dest = 'BOS' AND delay > 60" '{"dest": "BOS", "delay": 45}'""",
    ),
    ("See how a filter is read, or what is wrong with it", 'tidings check "dep_dealy BETWEEN 60 AND 120"'),
)


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What was matched, and how long each part took; `counts` are the matches of each filter."""

    flights: pa.Table
    flight_filters: list[FlightFilter]
    matcher: tidings.Matcher
    starts: npt.NDArray[np.int64]  # event i is wanted by wanted[starts[i] : starts[i + 1]]
    wanted: npt.NDArray[np.int64]  # positions in `flight_filters`
    compile_seconds: float
    match_seconds: float

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.wanted, minlength=len(self.flight_filters))

    def wanting(self, event: int) -> list[FlightFilter]:
        return [self.flight_filters[i] for i in self.wanted[self.starts[event] : self.starts[event + 1]]]

    def events_of(self, interest: int) -> npt.NDArray[np.intp]:
        """The events that one filter matches."""
        return np.searchsorted(self.starts, np.flatnonzero(self.wanted == interest), side="right") - 1


def run(
    console: Console, *, subscribers: int = SUBSCRIBERS, seed: int = SEED, own_filter: str | None = None
) -> DemoOutcome:
    """Match the bundled flights and show the result; `own_filter` is one more, of the subscriber `you`."""
    flights = load_flights()
    asked = flight_filters(flights, subscribers, seed)
    if own_filter is not None:
        asked.append(FlightFilter(YOU, "own", own_filter))
    _show_loaded(console, flights, asked)
    outcome = match_flights(console, flights, asked)
    _show_rate(console, outcome)
    _show_subscribers(console, outcome)
    _show_events(console, outcome)
    _show_explanations(console, outcome)
    _show_next(console)
    return outcome


def match_flights(console: Console, flights: pa.Table, asked: list[FlightFilter]) -> DemoOutcome:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        compiling = progress.add_task("compiling filters", total=None)
        started = time.perf_counter()
        subscriptions = [
            tidings.Subscription(id=interest.id, filter=interest.filter, subscriber=interest.subscriber)
            for interest in asked
        ]
        matcher = tidings.Matcher(subscriptions, infer_domain(flights, name="flights"))
        compiled = time.perf_counter()
        progress.update(compiling, total=len(asked), completed=len(asked))

        matching = progress.add_task("matching flights", total=flights.num_rows)
        starts, wanted = [np.zeros(1, np.int64)], []
        for first in range(0, flights.num_rows, EVENTS_PER_BATCH):
            batch = flights.slice(first, EVENTS_PER_BATCH)
            matches = matcher.match(batch)
            starts.append(starts[-1][-1] + matches.offsets[1:])
            # A slot is the place in the list of subscriptions; each flight's are shown in that order.
            wanted.append(matches.slots[np.lexsort((matches.slots, matches.events))].astype(np.int64))
            progress.update(matching, advance=batch.num_rows)
        matched = time.perf_counter()
    return DemoOutcome(
        flights, asked, matcher, np.concatenate(starts), np.concatenate(wanted), compiled - started, matched - compiled
    )


def _show_loaded(console: Console, flights: pa.Table, asked: list[FlightFilter]) -> None:
    cancelled = flights["dep_delay"].null_count
    console.print(
        f"[bold]Tidings[/]: an event and the subscriptions it satisfies meet.\n\n"
        f"Events         {flights.num_rows:,} flights that were to leave New York in February 2013,\n"
        f"               {cancelled:,} of them cancelled, most in the blizzard of the 8th and 9th\n"
        f"Subscriptions  {len(asked):,}, each a filter in SQL, such as those of",
        highlight=False,
    )
    for interest in sorted(_one_of_each_purpose(asked), key=lambda interest: len(interest.filter))[:3]:
        console.print(_indented(f"{interest.id:<26} {interest.filter}"))
    console.print()


def _show_rate(console: Console, outcome: DemoOutcome) -> None:
    events, pairs = outcome.flights.num_rows, len(outcome.wanted)
    unmatched = int(np.count_nonzero(np.diff(outcome.starts) == 0))
    console.print(
        f"\nMatched {events:,} flights × {len(outcome.flight_filters):,} filters in {outcome.match_seconds:.1f} s, "
        f"after {outcome.compile_seconds:.1f} s of compiling:\n"
        f"[bold]{events / outcome.match_seconds:,.0f} flights/s[/] against {len(outcome.flight_filters):,} filters, "
        f"on this machine.\n"
        f"{pairs:,} matches, {pairs / events:.1f} a flight; nobody wanted {unmatched:,} flights.\n",
        highlight=False,
    )


def _show_subscribers(console: Console, outcome: DemoOutcome) -> None:
    table = _table("Who gets what")
    table.add_column("subscriber", no_wrap=True)
    table.add_column("filter", ratio=3)
    table.add_column("matches", justify="right")
    table.add_column("for example", ratio=2)
    counts = outcome.counts
    for interest in _shown_wishes(outcome):
        position = outcome.flight_filters.index(interest)
        example = _flight(outcome, int(outcome.events_of(position)[0])) if counts[position] else "none"
        name = interest.subscriber.split("@")[0]
        table.add_row(escape(name), escape(interest.filter), f"{counts[position]:,}", escape(example))
    console.print(table)


def _shown_wishes(outcome: DemoOutcome) -> list[FlightFilter]:
    """The subscriber with the most matches for each purpose, the most matches first; before them the user's own."""
    counts = outcome.counts
    best: dict[str, int] = {}
    for position in np.argsort(-counts, kind="stable"):
        best.setdefault(outcome.flight_filters[position].purpose, int(position))
    own = best.pop("own", None)
    return [outcome.flight_filters[position] for position in ([] if own is None else [own]) + list(best.values())]


def _show_events(console: Console, outcome: DemoOutcome) -> None:
    table = _table("Who gets each of these")
    table.add_column("flight", ratio=3)
    table.add_column("goes to", ratio=4)
    for event in _telling_events(outcome):
        wanting = outcome.wanting(event)
        shown = ", ".join(interest.id for interest in wanting[:5])
        more = f" and {len(wanting) - 5:,} more" if len(wanting) > 5 else ""
        table.add_row(escape(_flight(outcome, event)), escape(shown + more) or "nobody")
    console.print(table)


def _telling_events(outcome: DemoOutcome) -> list[int]:
    """The latest flight, one cancelled in the blizzard, one that came in early, and one that nobody wanted."""
    takers = np.diff(outcome.starts)
    delay, day, arrival = (outcome.flights[name].to_numpy() for name in ("dep_delay", "day", "arr_delay"))
    return [
        _latest(outcome),
        *np.flatnonzero(np.isnan(delay) & (day == BLIZZARD_DAY))[:1].tolist(),
        *np.flatnonzero((arrival < -30) & (takers > 0))[:1].tolist(),
        *np.flatnonzero(takers == 0)[:1].tolist(),
    ]


def _latest(outcome: DemoOutcome) -> int:
    return int(np.nanargmax(outcome.flights["dep_delay"].to_numpy()))


def _show_explanations(console: Console, outcome: DemoOutcome) -> None:
    """Why the latest flight goes to someone, and whom it nearly went to."""
    latest = _latest(outcome)
    record, wanting = _record(outcome, latest), outcome.wanting(latest)
    console.print(f"[bold]Why, and why not: {escape(_flight(outcome, latest))}[/]\n", highlight=False)
    if wanting:
        telling = max(
            wanting, key=lambda interest: (interest.purpose == "own", " OR " in interest.filter, len(interest.filter))
        )
        _show_explanation(console, "A match:", outcome.matcher.explain(record, telling.id))
    for miss in outcome.matcher.nearest(record, limit=1):
        _show_explanation(console, "A near miss:", miss)


def _show_explanation(console: Console, title: str, explanation: Explanation) -> None:
    console.print(escape(title), highlight=False)
    console.print(_indented(explanation.text), highlight=False)
    console.print(_indented(str(explanation)), highlight=False)
    console.print()


def _show_next(console: Console) -> None:
    console.print("[bold]Try next[/] (after `. .venv/bin/activate`)", highlight=False)
    for number, (what, command) in enumerate(_NEXT, 1):
        console.print(_indented(f"{number}. {what}:"))
        console.print(Text(f"    {command}"), soft_wrap=True)  # a line that is broken cannot be copied


def _flight(outcome: DemoOutcome, event: int) -> str:
    return in_a_line(_record(outcome, event))


def _record(outcome: DemoOutcome, event: int) -> dict[str, Any]:
    record: dict[str, Any] = outcome.flights.slice(event, 1).to_pylist()[0]
    return record


def _one_of_each_purpose(asked: list[FlightFilter]) -> list[FlightFilter]:
    return list({interest.purpose: interest for interest in reversed(asked)}.values())


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", expand=True, box=SIMPLE_HEAD)


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 2), expand=False)
