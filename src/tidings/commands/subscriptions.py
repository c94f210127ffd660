"""`tidings subscribe` and `tidings subscriptions`: create, find, change and delete subscriptions of a service."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidings.commands import command_group
from tidings.commands.connection import TokenFile, Url, about_filter, as_line, connected
from tidings.commands.inputs import Filter
from tidings.errors import TidingsError

if TYPE_CHECKING:
    from tidings.client import SubscriptionState

_DURATION = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

app = command_group(
    """List, show, change and delete subscriptions.

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


class Select(StrEnum):
    document = "document"
    nodes = "nodes"


class Mode(StrEnum):
    pull = "pull"
    sse = "sse"
    webhook = "webhook"


def subscribe(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain that the events are of.")],
    filter: Filter,
    id: Annotated[str | None, typer.Option("--id", help="Its id; by default one is made up.")] = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="How notifications are delivered.")] = None,
    webhook: Annotated[
        str | None, typer.Option("--webhook", metavar="URL", help="Post notifications here, signed.")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", metavar="FILE", help="The webhook's signing secret (whsec_…).")
    ] = None,
    start: Annotated[
        str, typer.Option("--start", metavar="WHERE", help="latest, earliest, a position, or a time with its zone.")
    ] = "latest",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="After 30m, 12h, 7d, or at a time.")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label to find it by; repeatable.")
    ] = None,
    select: Annotated[
        Select, typer.Option("--select", help="Deliver events, or the nodes that the filter's paths over XML select.")
    ] = Select.document,
    paused: Annotated[bool, typer.Option("--paused", help="Deliver nothing before it is resumed.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Subscribe with a filter, and print the subscription's id.

    Every event published after that is covered.

    \b
      tidings subscribe quotes "symbol = 'ACME' AND price > 8.30" --id dear
      tidings subscribe quotes "price > 8.30" --webhook https://example.org/hook --label team=oil
      tidings subscribe flights "dep_delay > 300" --start earliest --expires 7d
      tidings subscribe feeds "xpath_boolean(document, '//item[author]/link')" --select nodes
    """
    if webhook is not None and mode not in (None, Mode.webhook):
        raise typer.BadParameter(f"--webhook is a mode of its own; leave out --mode {mode}")
    chosen: Literal["pull", "sse", "webhook"] = (
        "webhook" if webhook is not None else "pull" if mode is None else mode.value
    )
    if chosen == "webhook" and webhook is None:
        raise typer.BadParameter("--mode webhook needs --webhook URL")
    secret = None if secret_file is None else _read_secret(secret_file)
    with connected(url, token_file) as client, about_filter(filter):
        made = client.subscribe(
            domain, filter, id=id, mode=chosen, url=webhook, secret=secret, start=read_start(start),
            expires=None if expires is None else read_expiry(expires), labels=read_labels(labels or []), paused=paused,
            select=select.value,
        )  # fmt: skip
    typer.echo(made.id)
    if made.secret is not None and secret is None:
        typer.echo(f"the secret that posts are signed with, shown this once: {made.secret}", err=True)
    typer.echo(f"{made.state}, from position {made.filter_from} on; {_next(made.id, chosen)}", err=True)


def _next(id: str, mode: str) -> str:
    match mode:
        case "pull":
            return f"take what it gets with `tidings pull {id}`"
        case "sse":
            return f"watch it with `tidings tail {id}`"
    return f"see what could not be delivered with `tidings subscriptions dead-letters {id}`"


def read_start(text: str) -> Literal["latest", "earliest"] | int | dt.datetime:
    """Where to start, as --start names it."""
    if text in ("latest", "earliest"):
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit():
        return int(text)
    return read_time(text, "--start", "latest, earliest, a position, or a time such as 2026-01-31T12:00:00Z")


def read_expiry(text: str) -> dt.datetime | dt.timedelta:
    if (duration := _DURATION.fullmatch(text)) is not None:
        return dt.timedelta(**{_UNITS[duration[2]]: int(duration[1])})
    return read_time(text, "--expires", "30m, 12h, 7d, or a time such as 2026-01-31T12:00:00Z")


def read_time(text: str, option: str, forms: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: give {forms}") from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{option} {text}: a time needs its zone, such as {text}Z")
    return moment


def read_labels(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (key, sign, _) in zip(texts, pairs, strict=True):
        if not key or not sign:
            raise typer.BadParameter(f"--label {text}: write KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _read_secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TidingsError(f"cannot read the secret in {path}: {error}") from None


@app.command("list")
def list_(
    domain: Annotated[str | None, typer.Option("--domain", help="Of this domain.")] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="KEY[=VALUE]", help="With this label.")] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="With this in id or filter.")] = None,
    state: Annotated[str | None, typer.Option("--state", help=f"One of {', '.join(_STATES)}.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 100,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List subscriptions, one a line."""
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
    """Show a subscription with everything that the service knows of it."""
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
    """Change a subscription in place: no event is missed, and none is matched by both filters."""
    if filter is None and select is None and expires is None and not labels and not without:
        raise typer.BadParameter("say what is to change: --filter, --select, --expires, --label or --no-label")
    patch = {**read_labels(labels or []), **dict.fromkeys(without or [])}
    with connected(url, token_file) as client, about_filter(filter or ""):
        wanted: Literal["document", "nodes"] | None = None if select is None else select.value
        if expires is None:
            changed = client.change(id, filter=filter, select=wanted, labels=patch or None)
        else:
            until = None if expires == "never" else read_expiry(expires)
            changed = client.change(id, filter=filter, select=wanted, labels=patch or None, expires=until)
    _print(changed)


@app.command("pause")
def pause(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """Stop deliveries; what matches meanwhile waits."""
    with connected(url, token_file) as client:
        _print(client.pause(id))


@app.command("resume")
def resume(id: Id, url: Url = None, token_file: TokenFile = None) -> None:
    """Start deliveries again."""
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
    """List what could not be delivered, and why."""
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
    """Deliver dead letters once more."""
    with connected(url, token_file) as client:
        client.redrive(id, positions or None)
    typer.echo("they are tried again", err=True)


def _print(one: SubscriptionState) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in one.json.items():
        shown = _state(one) if name == "state" else Text(value if isinstance(value, str) else as_line(value))
        table.add_row(Text(name, "dim"), shown)
    Console().print(table)


def _state(one: SubscriptionState) -> Text:
    return Text(one.state, _STATES.get(one.state, ""))


def _labels(one: SubscriptionState) -> Text:
    return Text(" ".join(f"{key}={value}" for key, value in one.labels.items()))
