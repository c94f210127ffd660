"""`tidings check-data`, `tidings backup` and `tidings restore`: the data directory of a service, looked after."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tidings.errors import TidingsError
from tidings.service.data.data_directory import CATALOGUE, DataDirectory
from tidings.service.data.private_files import be_private

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory of the service.")]


def check_data(
    directory: Directory,
    catalogue: Annotated[
        str | None,
        typer.Option("--catalogue", metavar="URL", envvar=CATALOGUE, help="Where the catalogue is in PostgreSQL."),
    ] = None,
) -> None:
    """Print what of a data directory is damaged, where, and what to do about it; exits with 1 if anything is.

    Reads every file to its end: log, catalogue, deliveries, mailboxes, indexes and checkpoints. A service that runs
    goes on meanwhile; some of it can only be checked when it is stopped, which is printed.

    \b
      tidings check-data tidings-data
    """
    _needs_the_service()
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
    """Copy a data directory as it is at one moment, while it is served or not.

    Everything that was acknowledged before this began is in the backup. Publishers do not wait, subscribers for a
    moment, and changes of subscriptions until the catalogue is copied.

    \b
      tidings backup tidings-data /backups/monday
    """
    _needs_the_service()
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
    """Make a data directory from a backup, which `tidings serve` then starts.

    Subscribers get again what they acknowledged after the backup. New events get positions far behind the last one,
    so that no position means another event than before.

    \b
      tidings restore /backups/monday tidings-data
    """
    _needs_the_service()
    from tidings.service.data.backup import restore as bring_back

    be_private()
    with _progress() as progress:
        made = bring_back(target, directory, progress)
    typer.echo(f"{directory} is as it was at {made.time}; `tidings serve --data {directory}` starts it")


def _needs_the_service() -> None:
    for needed, extra in (("sqlalchemy", "service"), ("pyspark", "spark")):
        if find_spec(needed) is None:
            raise TidingsError(f"this needs {needed}: pip install 'tidings[{extra}]'")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Reports to a terminal how far something is, and to nobody else."""
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        yield lambda what, done, of: shown.update(task, description=what, completed=done, total=max(of, 1))
