"""`tidings subscribe`: have a service keep, or send, the events that a filter asks for."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidings.commands.connection import TokenFile, Url, about_filter, connected
from tidings.errors import TidingsError

_DURATION = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Select(StrEnum):
    document = "document"
    nodes = "nodes"


class Mode(StrEnum):
    pull = "pull"
    sse = "sse"
    webhook = "webhook"


def subscribe(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain that the events are of.")],
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="The condition of a Spark SQL WHERE clause.")],
    id: Annotated[str | None, typer.Option("--id", help="A name for it; else one is made.")] = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="How notifications are to be delivered.")] = None,
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
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="To find it by; as many as you like.")
    ] = None,
    select: Annotated[
        Select, typer.Option("--select", help="Deliver events, or the nodes that the filter's paths over XML select.")
    ] = Select.document,
    paused: Annotated[bool, typer.Option("--paused", help="Deliver nothing before it is resumed.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Subscribe, and print the subscription's id. Events published from then on are covered.

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
    """A start in the words of the command line."""
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
