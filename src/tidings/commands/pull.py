"""`tidings pull`: take what waits for a subscription, a JSON object a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidings.commands.connection import TokenFile, Url, as_line, connected

if TYPE_CHECKING:
    from tidings.client import Notification


def pull(
    id: Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many in one request.")] = 100,
    wait: Annotated[float, typer.Option("--wait", min=0, max=60, help="Seconds to wait where nothing waits.")] = 0.0,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge them, so that they do not come again.")
    ] = True,
    everything: Annotated[bool, typer.Option("--all", help="Go on until nothing waits.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print notifications as lines of JSON: {"position": …, "event": …}. What was printed is acknowledged.

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
