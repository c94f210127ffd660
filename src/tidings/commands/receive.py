"""`tidings pull` and `tidings tail`: take notifications that wait, or watch them arrive."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tidings.commands.connection import TokenFile, Url, about_filter, as_line, connected
from tidings.errors import TidingsError

if TYPE_CHECKING:
    from tidings.client import Client, Notification

KEPT = dt.timedelta(hours=1)  # how long a filter that is tried out stays if its removal fails


def pull(
    id: Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most this many in one request.")] = 100,
    wait: Annotated[float, typer.Option("--wait", min=0, max=60, help="Seconds to wait for a first one.")] = 0.0,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge them, so that they do not come again.")
    ] = True,
    everything: Annotated[bool, typer.Option("--all", help="Repeat until nothing waits.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Repeat until Ctrl-C.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print what waits for a subscription, and acknowledge it.

    Each notification is a line of JSON: {"position": …, "event": …}.

    \b
      tidings pull dear
      tidings pull dear --follow | jq .event.data
      tidings pull dear --no-ack --limit 5
    """
    if (everything or follow) and not ack:
        raise typer.BadParameter("--no-ack would bring the same ones for ever; leave out --all and --follow")
    with connected(url, token_file, patient=follow) as client:
        if everything or follow:
            try:
                for notification in client.notifications(id, limit=limit, wait=max(wait, 20.0), follow=follow):
                    typer.echo(line_of(notification))
            except KeyboardInterrupt:
                return
        else:
            pulled = client.pull(id, limit=limit, wait=wait)
            for notification in pulled.notifications:
                typer.echo(line_of(notification))
            if ack and pulled.notifications and pulled.cursor is not None:
                client.ack(id, pulled.cursor)
            if not pulled.notifications:
                typer.echo("nothing waits", err=True)


def line_of(notification: Notification) -> str:
    what = {"event": notification.event} if notification.nodes is None else {"nodes": list(notification.nodes)}
    return as_line({"position": notification.position, **what})


def tail(
    subscription: Annotated[str, typer.Argument(metavar="ID|DOMAIN", help="A subscription; or with FILTER, a domain.")],
    filter: Annotated[
        str | None, typer.Argument(metavar="FILTER", help="Watch what this filter gets, without keeping it.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this many.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Lines of JSON, even to a terminal.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show notifications as they arrive, until Ctrl-C.

    Those of a subscription are acknowledged once they are shown.

    \b
      tidings tail dear
      tidings tail quotes "price > 8.30"
      tidings tail quotes "price > 8.30" --count 10 --json
    """
    console = Console(highlight=False)
    with (
        connected(url, token_file, patient=True) as client,
        contextlib.suppress(KeyboardInterrupt),
        _watched(client, subscription, filter) as watched,
    ):
        for number, notification in enumerate(watched, start=1):
            if json or not console.is_terminal:
                typer.echo(line_of(notification))
            else:
                console.print(_shown(notification))
            watched.shown = notification
            if number == count:
                return


class _Watched:
    """Notifications as they arrive, and the last one that was shown."""

    def __init__(self, arriving: Iterator[Notification]) -> None:
        self._arriving = arriving
        self.shown: Notification | None = None

    def __iter__(self) -> Iterator[Notification]:
        return self._arriving


@contextlib.contextmanager
def _watched(client: Client, subscription: str, filter: str | None) -> Iterator[_Watched]:
    if filter is None:
        found = client.subscription(subscription)
        if found.mode == "webhook":
            raise TidingsError(f"'{found.id}' posts to {found.url}; watch its filter: tidings tail {found.domain} '…'")
        typer.echo(f"{found.domain}: {found.filter}", err=True)
        watched = _Watched(client.stream(found.id))
        try:
            yield watched
        finally:
            if watched.shown is not None and watched.shown.cursor is not None:
                client.ack(found.id, watched.shown.cursor)
        return
    with about_filter(filter):
        tried = client.subscribe(subscription, filter, mode="sse", expires=KEPT, labels={"made-by": "tail"})
    typer.echo(f"{subscription}: {filter}; waiting for events from position {tried.filter_from} on", err=True)
    try:
        yield _Watched(client.stream(tried.id))
    finally:
        client.delete(tried.id)


def _shown(notification: Notification) -> Text:
    """The position, and the event's own attributes, or the nodes that were selected."""
    text = Text(f"{notification.position:>10}  ", "dim")
    if notification.nodes is not None:
        return text.append("  ".join(notification.nodes))
    for name, value in notification.data.items():
        text.append(f"{name} ", "dim").append(value if isinstance(value, str) else as_line(value)).append("  ")
    return text
