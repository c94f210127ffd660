"""`tidings token`, `check-data`, `backup` and `restore`: work on a service's data directory, not over HTTP."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from tidings.commands import command_group
from tidings.errors import TidingsError
from tidings.extras import require
from tidings.service.data.data_directory import CATALOGUE, DEFAULT_DATA, DEFAULT_TENANT, DataDirectory
from tidings.service.data.private_files import be_private

if TYPE_CHECKING:
    from tidings.store.catalogue import Catalogue

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory of the service.")]


def check_data(
    directory: Directory,
    catalogue: Annotated[
        str | None,
        typer.Option("--catalogue", metavar="URL", envvar=CATALOGUE, help="Where the catalogue is in PostgreSQL."),
    ] = None,
) -> None:
    """Print what is damaged in a data directory.

    Also where, and what to do about it; exits with 1 if anything is. Reads every file to its end: log,
    catalogue, deliveries, mailboxes, indexes and checkpoints. A service that runs goes on meanwhile; some of it
    can only be checked when it is stopped, which is printed.

    \b
      tidings check-data tidings-data
    """
    require("pyspark")
    from tidings.service.data.check_data import check_data as check

    with _progress() as progress:
        report = check(DataDirectory(directory), catalogue=catalogue, progress=progress)
    for line in report.sound:
        typer.echo(f"sound     {line}")
    for line in report.unchecked:
        typer.echo(f"unchecked {line}")
    for finding in report.findings:
        typer.echo(f"WRONG     {finding}")
    if report.findings:
        typer.echo(f"{len(report.findings)} things are wrong with {directory}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{directory} is sound" + (", as far as that can be seen while it is served" if report.running else ""))


def backup(
    directory: Directory,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Where the backup goes; must not be there yet.")],
) -> None:
    """Copy a data directory as it is at one moment.

    The service may run meanwhile. Everything that was acknowledged before this began is in the backup.
    Publishers do not wait, subscribers for a moment, and changes of subscriptions until the catalogue is
    copied.

    \b
      tidings backup tidings-data /backups/monday
    """
    require("pyspark")
    from tidings.service.data.backup import back_up

    be_private()
    with _progress() as progress:
        made = back_up(DataDirectory(directory), target, progress)
    typer.echo(f"{target} has {directory} as it was at {made.time}: the log from position {made.log_start:,} to")
    typer.echo(f"{made.log_end:,}, {made.files} files, {made.bytes:,} bytes")
    typer.echo(f"`tidings restore {target} DIR` makes a data directory of it")


def restore(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="What `tidings backup` made.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new data directory; must not be there yet.")],
) -> None:
    """Make a data directory from a backup.

    `tidings serve` then starts it. Subscribers get again what they acknowledged after the backup. New events
    get positions far behind the last one, so that no position means another event than before.

    \b
      tidings restore /backups/monday tidings-data
    """
    require("pyspark")
    from tidings.service.data.backup import restore as bring_back

    be_private()
    with _progress() as progress:
        made = bring_back(target, directory, progress)
    typer.echo(f"{directory} is as it was at {made.time}; `tidings serve --data {directory}` starts it")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows progress if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        yield lambda what, done, of: shown.update(task, description=what, completed=done, total=max(of, 1))


# ---------------------------------------------------------------------- tokens

token = command_group(
    """Create, list and revoke the tokens of a service.

Each belongs to one tenant, who sees nothing of the others.

\b
  tidings token create --tenant oil --label "the desk in Rotterdam"
  tidings token list --tenant oil
  tidings token revoke --tenant oil tok_…
"""
)

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant.")]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The service's data directory.")]
CatalogueUrl = Annotated[
    str | None,
    typer.Option("--catalogue", metavar="URL", help="PostgreSQL, where the service has its catalogue there."),
]


@token.command("create")
def create(
    tenant: Tenant,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="What it is for.")] = "",
    data: Data = Path(DEFAULT_DATA),
    catalogue: CatalogueUrl = None,
) -> None:
    """Create a token and print it, this once: only its hash is kept."""
    with _opened(data, catalogue) as opened:
        typer.echo(opened.create_token(tenant, label))


@token.command("list")
def list_(tenant: Tenant = DEFAULT_TENANT, data: Data = Path(DEFAULT_DATA), catalogue: CatalogueUrl = None) -> None:
    """List a tenant's tokens, without their secrets."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("id", "label", "made"):
        table.add_column(head)
    with _opened(data, catalogue) as opened:
        for row in opened.tokens(tenant):
            made = dt.datetime.fromtimestamp(row.created / 1_000_000, dt.UTC)
            table.add_row(row.id, row.label, f"{made:%Y-%m-%d %H:%M}Z")
    Console().print(table)


@token.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `token list` shows it.")],
    tenant: Tenant = DEFAULT_TENANT,
    data: Data = Path(DEFAULT_DATA),
    catalogue: CatalogueUrl = None,
) -> None:
    """Revoke a token; a running service notices within seconds."""
    with _opened(data, catalogue) as opened:
        if not opened.revoke_token(tenant, id):
            raise TidingsError(
                f"token: {tenant} has no {id}; `tidings token list --tenant {tenant}` shows those it has"
            )
    typer.echo(f"{id} is revoked", err=True)


def _opened(data: Path, catalogue: str | None) -> Catalogue:
    from tidings.store.catalogue import Catalogue

    place = DataDirectory(data).catalogue
    if catalogue is None and not place.exists():
        raise TidingsError(f"token: {data} has no catalogue; start `tidings serve --data {data}` once, or give --data")
    return Catalogue(catalogue or place)
