"""`tidings publish`: events from the command line, standard input or a file to a service."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tidings.commands.connection import TokenFile, Url, connected
from tidings.errors import EventError
from tidings.model.event_files import events_of
from tidings.model.event_json import parse_events


def publish(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain that the events are of.")],
    event: Annotated[
        str | None,
        typer.Argument(metavar="EVENT", help="An event, or an array of them, as JSON; - reads one a line from input."),
    ] = None,
    events: Annotated[
        Path | None, typer.Option("--events", metavar="FILE", help="A file .jsonl, .json, .csv or .parquet.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Who publishes: CloudEvents' source.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The id of one event; sent again with the same id, it is stored once.")
    ] = None,
    type: Annotated[str | None, typer.Option("--type", help="CloudEvents' type, of one event.")] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="CloudEvents' subject, of one event.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=100_000, help="Events in one request.")] = 1000,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Publish events and print their positions.

    They are then on the service's disk, each once, in this order.

    \b
      tidings publish quotes '{"symbol": "ACME", "price": 8.40}'
      tidings publish quotes --events quotes.parquet --batch 5000
      generate | tidings publish quotes -
    """
    if (event is None) == (events is None):
        raise typer.BadParameter("give an EVENT (- reads standard input), or --events FILE")
    own = {"id": id, "type": type, "subject": subject}
    given = _events(event, events)
    with connected(url, token_file, patient=True) as client:
        if any(value is not None for value in own.values()):
            one = list(given)
            if len(one) != 1:
                raise typer.BadParameter(f"--id, --type and --subject are of one event, and there are {len(one)}")
            _print_positions(1, client.publish(domain, one[0], source=source, **own), None)
            return
        if source is not None:
            given = (_with_source(each, source) for each in given)
        count, first, last = 0, None, None
        with Console(stderr=True).status("publishing") as status:
            for positions in client.publish_batches(domain, given, batch_events=batch):
                count += len(positions)
                first, last = positions[0] if first is None else first, positions[-1]
                status.update(f"publishing: {count:,} events")
    _print_positions(count, first, last)


def _events(event: str | None, events: Path | None) -> Iterable[dict[str, Any]]:
    if events is not None:
        return events_of(events)
    if event != "-":
        return parse_events(event or "")
    return (one for line in sys.stdin.buffer if line.strip() for one in parse_events(line, lines=True))


def _with_source(event: dict[str, Any], source: str) -> dict[str, Any]:
    if "specversion" in event:
        return {**event, "source": source}
    return {"specversion": "1.0", "source": source, "data": event}


def _print_positions(count: int, first: int | None, last: int | None) -> None:
    if first is None:
        raise EventError("there are no events to publish")
    where = f"at position {first}" if count == 1 else f"at positions {first} to {last}"
    typer.echo(f"published {count:,} event{'' if count == 1 else 's'} {where}")
