"""`tidings explain` and `tidings check`: why an event matches a filter or not, and how a filter is read."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import typer

from tidings.commands.connection import TokenFile, about_filter, as_line, connected
from tidings.commands.inputs import DomainFile, Filter, parse_text, read_domain
from tidings.errors import EventError, TidingsError
from tidings.filter.normal.description import describe_filter
from tidings.filter.syntax.writer import to_sql
from tidings.matching.explain.explanation import Explanation
from tidings.matching.explain.explanation import explain as explain_filter
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.model.event_files import events_of
from tidings.model.event_json import parse_events
from tidings.model.infer import infer_domain

INFERRED_FROM = 1000  # events of a file whose values give the types of its attributes


def explain(
    filter: Annotated[
        str | None, typer.Argument(metavar="FILTER", help="The filter: the condition of a Spark SQL WHERE clause.")
    ] = None,
    event: Annotated[
        str | None, typer.Argument(metavar="EVENT", help="The event, as a JSON object; - reads standard input.")
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option("--domain", metavar="FILE|NAME", help="Attributes and types: a file; with --url, a domain there."),
    ] = None,
    events: Annotated[
        Path | None, typer.Option("--events", metavar="FILE", help="Explain for the events of a file.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Of --events: how many to explain.")] = 5,
    position: Annotated[
        int | None,
        typer.Option("--position", min=0, help="With --url: who got this event, and who nearly did."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Ask this service, which knows the domain and the log.")
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Show whether an event matches a filter, and why.

    Without a domain, the types of the attributes are taken from the events.

    \b
      tidings explain "origin = 'JFK' AND delay > 60" '{"origin": "JFK", "delay": 45}'
      tidings explain "price > 8.30" - --domain stocks.toml < event.json
      tidings explain "price > 8.30" --events quotes.jsonl --limit 3
      tidings explain "price > 8.30" '{"price": 8.10}' --domain quotes --url http://127.0.0.1:8080
      tidings explain --position 4711 --url http://127.0.0.1:8080
    """
    if position is not None:
        if url is None or filter is not None or events is not None:
            raise typer.BadParameter("--position is of an event in a service's log: give it with --url, and no FILTER")
        _explain_position(position, url, token_file)
        return
    if filter is None or (event is None) == (events is None):
        raise typer.BadParameter("give a FILTER and an EVENT, or a FILTER and --events FILE")
    if url is not None:
        if domain is None or event is None:
            raise typer.BadParameter("--url needs an EVENT, and --domain with the name of its domain there")
        _explain_on_service(filter, _one(event), domain, url, token_file)
        return
    if event is not None:
        given = _one(event)
        chosen = _domain_file(Path(domain)) if domain is not None else infer_domain([given], name="event")
        typer.echo(explain_filter(parse_text(filter, chosen), read_record(given, chosen), text=filter))
    elif events is not None:
        _explain_file(filter, events, domain, limit)


def check(
    filter: Filter,
    domain: DomainFile = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="FILE", help="Events to take the types from: .parquet, .csv, .json or .jsonl."
        ),
    ] = None,
) -> None:
    """Show how a filter is read, or what is wrong with it.

    Without a domain or events, it is checked against the flights of `tidings demo`.

    \b
      tidings check "dep_delay BETWEEN 60 AND 120 AND dest LIKE 'B%'"
      tidings check "price > 8.30 OR volume >= 1e6" --domain stocks.toml
      tidings check "magnitude > 5" --events quakes.jsonl
    """
    if domain is not None and events is not None:
        raise typer.BadParameter("give --domain or --events, not both")
    chosen = read_domain(domain) if domain is not None else _domain_of_events(events)
    tree = parse_text(filter, chosen)
    typer.echo(f"✓ a filter over the domain '{chosen.name}'")
    typer.echo(f"\nread as\n  {to_sql(tree)}")
    typer.echo("\nnormal form")
    for line in describe_filter(filter, chosen).splitlines():
        typer.echo(f"  {line}")


def _domain_of_events(path: Path | None) -> Domain:
    """The domain of a file of events; that of the bundled flights if there is no file."""
    if path is None:
        from tidings.demo.flights import load_flights

        return infer_domain(load_flights(), name="flights")
    try:
        match path.suffix.lower():
            case ".parquet":
                return infer_domain(pq.read_schema(path), name=path.stem)
            case ".csv":
                return infer_domain(pyarrow.csv.read_csv(path), name=path.stem)
            case ".json" | ".jsonl" | ".ndjson" as suffix:
                read = parse_events(path.read_bytes(), lines=suffix != ".json")
                return infer_domain(read, name=path.stem)
    except (OSError, pa.ArrowException) as error:
        raise EventError(f"cannot read {path}: {error}") from error
    raise typer.BadParameter(f"{path}: events come in a file .parquet, .csv, .json or .jsonl")


def _explain_file(filter: str, path: Path, domain: str | None, limit: int) -> None:
    """Count the matches of the whole file, and explain the first of them, then the nearest misses."""
    read = events_of(path)
    first = list(itertools.islice(read, INFERRED_FROM))
    if not first:
        raise EventError(f"{path} has no events")
    chosen = _domain_file(Path(domain)) if domain is not None else infer_domain(first, name=path.stem)
    tree = parse_text(filter, chosen)
    count, matched = 0, 0
    shown: list[tuple[tuple[float, ...], int, Explanation]] = []
    for row, event in enumerate(itertools.chain(first, read)):
        found = explain_filter(tree, _record(event, chosen, row), text=filter)
        count, matched = count + 1, matched + found.matches
        shown.append(((found.failing, found.distance, row), row, found))
        if len(shown) > 1000:
            shown = sorted(shown, key=lambda one: one[0])[:limit]
    typer.echo(f"{matched:,} of {count:,} events match")
    for _, row, found in sorted(shown, key=lambda one: one[0])[:limit]:
        typer.echo(f"\nrow {row}: {found}")


def _record(event: dict[str, Any], domain: Domain, row: int) -> Any:
    try:
        return read_record(event, domain)
    except EventError as error:
        raise EventError(error.reason, row=row, attribute=error.attribute) from None


def _explain_on_service(filter: str, event: dict[str, Any], domain: str, url: str, token_file: Path | None) -> None:
    with connected(url, token_file) as client, about_filter(filter):
        typer.echo(client.test_filter(domain, filter, event).text)


def _explain_position(position: int, url: str, token_file: Path | None) -> None:
    with connected(url, token_file) as client:
        found = client.event_matches(position)
    typer.echo(f"position {found.position}: {as_line(found.event)}")
    typer.echo(f"\nmatches {_count(found.matched)}")
    for id_ in found.matched:
        typer.echo(f"  ✓ {id_}")
    if found.nearly:
        typer.echo("\nnearly")
    for near in found.nearly:
        first, *rest = near.text.splitlines() or [""]
        typer.echo(f"  ✗ {near.subscription}: {first}")
        for line in rest:
            typer.echo(f"    {line}")


def _count(ids: Iterable[str]) -> str:
    number = len(list(ids))
    return "no subscription" if not number else f"{number} subscription{'' if number == 1 else 's'}"


def _one(text: str) -> dict[str, Any]:
    events = parse_events(sys.stdin.buffer.read() if text == "-" else text)
    if len(events) != 1:
        raise EventError(f"explain takes one event, and there are {len(events)}")
    return events[0]


def _domain_file(path: Path) -> Domain:
    if not path.is_file() and not path.suffix:
        raise TidingsError(f"--domain {path}: there is no such file; to ask a service about its domain, give --url too")
    return read_domain(path)
