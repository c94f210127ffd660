"""`tidings subscriptions`: those that there are, found, changed, paused, removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidings.client.calls import Selection
from tidings.commands.connection import TokenFile, Url, about_filter, as_line, connected, sub_app
from tidings.commands.subscribe import Select, read_expiry, read_labels

if TYPE_CHECKING:
    from tidings.client import Subscription

app = sub_app(
    """The subscriptions of a service.

\b
  tidings subscriptions list --domain quotes --label team=oil
  tidings subscriptions change dear --filter "price > 8.50"
  tidings subscriptions delete dear
"""
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")]
_STATES = {
    "active": "green", "paused": "yellow", "replaying": "cyan", "suspended": "red", "disabled": "red", "expired": "dim",
}  # fmt: skip


@app.command("list")
def list_(
    domain: Annotated[str | None, typer.Option("--domain", help="Of this domain.")] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="KEY[=VALUE]", help="With this label.")] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="With this in id or filter.")] = None,
    state: Annotated[str | None, typer.Option("--state", help=f"One of {', '.join(_STATES)}.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Those that fit, a line each."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("id", "state", "domain", "filter", "delivery", "labels"):
        table.add_column(head, overflow="fold")
    more = False
    with connected(url, token_file) as client:
        wanted = client.subscriptions(domain=domain, label=label, search=search, state=state)
        for number, one in enumerate(wanted):
            if number == limit:
                more = True
                break
            delivery = one.mode if one.url is None else f"{one.mode} {one.url}"
            table.add_row(one.id, _state(one), one.domain, Text(one.filter), delivery, _labels(one))
    Console().print(table)
    if more:
        typer.echo(f"and more; --limit shows more than {limit}", err=True)


@app.command("show")
def show(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """One, with everything that the service says of it."""
    with connected(url, token_file) as client:
        _print(client.subscription(id))


@app.command("change")
def change(
    id: Id,
    filter: Annotated[str | None, typer.Option("--filter", metavar="FILTER", help="Another filter.")] = None,
    select: Annotated[Select | None, typer.Option("--select", help="Deliver events, or nodes of XML.")] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="After 30m, 12h, 7d, at a time, or never.")
    ] = None,
    labels: Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Add a label.")] = None,
    without: Annotated[list[str] | None, typer.Option("--no-label", metavar="KEY", help="Remove a label.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Change a subscription while it lives: no event is missed, none is matched by both filters."""
    if filter is None and select is None and expires is None and not labels and not without:
        raise typer.BadParameter("say what is to change: --filter, --select, --expires, --label or --no-label")
    patch = {**read_labels(labels or []), **dict.fromkeys(without or [])}
    with connected(url, token_file) as client, about_filter(filter or ""):
        wanted: Selection | None = None if select is None else select.value
        if expires is None:
            changed = client.change(id, filter=filter, select=wanted, labels=patch or None)
        else:
            until = None if expires == "never" else read_expiry(expires)
            changed = client.change(id, filter=filter, select=wanted, labels=patch or None, expires=until)
    _print(changed)


@app.command("pause")
def pause(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """Deliver nothing for now; what matches waits."""
    with connected(url, token_file) as client:
        _print(client.pause(id))


@app.command("resume")
def resume(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """Deliver again."""
    with connected(url, token_file) as client:
        _print(client.resume(id))


@app.command("delete")
def delete(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """Remove a subscription, and what waits for it."""
    with connected(url, token_file) as client:
        client.delete(id)
    typer.echo(f"the subscription '{id}' is gone", err=True)


@app.command("dead-letters")
def dead_letters(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """What could not be delivered, and why."""
    with connected(url, token_file) as client:
        for letter in client.dead_letters(id):
            typer.echo(as_line(letter.json))


@app.command("redrive")
def redrive(
    id: Id,
    positions: Annotated[list[int] | None, typer.Argument(metavar="POSITION…", help="Which; without, all.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Try to deliver dead letters once more."""
    with connected(url, token_file) as client:
        client.redrive(id, positions or None)
    typer.echo("they are tried again", err=True)


def _print(one: Subscription) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in one.json.items():
        shown = _state(one) if name == "state" else Text(value if isinstance(value, str) else as_line(value))
        table.add_row(Text(name, "dim"), shown)
    Console().print(table)


def _state(one: Subscription) -> Text:
    return Text(one.state, _STATES.get(one.state, ""))


def _labels(one: Subscription) -> Text:
    return Text(" ".join(f"{key}={value}" for key, value in one.labels.items()))
