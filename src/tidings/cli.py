"""The command `tidings`: the names of its commands, and what becomes of an error.

A command's module is imported when the command is run, so that `tidings --help` and `tidings --version` are quick.

Exit status: 0 success, 1 an input is wrong (one line says what, and where), 2 the command is used wrongly,
3 `match` or `stream` finished and rejected subscriptions.
"""

from __future__ import annotations

import sys
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import tidings
from tidings.commands import HELP, single_command
from tidings.commands.inputs import FilterTextError
from tidings.errors import TidingsError
from tidings.extras import EXTRAS, MissingExtraError

# name: the function or group in tidings.commands, and the first line of its help
COMMANDS = {
    "demo": ("demo.demo", "Match real flights against thousands of filters; show why."),
    "explain": ("explain.explain", "Show whether an event matches a filter, and why."),
    "check": ("explain.check", "Show how a filter is read, or what is wrong with it."),
    "serve": ("serve.serve", "Run the service until Ctrl-C or SIGTERM."),
    "domain": ("domains.app", "Show and change the attributes and types of events."),
    "publish": ("publish.publish", "Publish events and print their positions."),
    "subscribe": ("subscriptions.subscribe", "Subscribe with a filter, and print the subscription's id."),
    "subscriptions": ("subscriptions.app", "List, show, change and delete subscriptions."),
    "pull": ("receive.pull", "Print what waits for a subscription, and acknowledge it."),
    "tail": ("receive.tail", "Show notifications as they arrive, until Ctrl-C."),
    "token": ("data_directories.token", "Create, list and revoke the tokens of a service."),
    "check-data": ("data_directories.check_data", "Print what is damaged in a data directory."),
    "backup": ("data_directories.backup", "Copy a data directory as it is at one moment."),
    "restore": ("data_directories.restore", "Make a data directory from a backup."),
    "match": ("spark_jobs.match", "Match a file of events against a file of subscriptions."),
    "stream": ("stream.stream", "Match events as they arrive, on Spark, until Ctrl-C."),
    "backtest": ("backtest.backtest", "Show what a filter would have delivered."),
    "analyse": ("spark_jobs.analyse", "Report which subscriptions never match and what they cost."),
    "adapt": ("spark_jobs.adapt", "Fit placements to subscriptions and past events."),
    "simulate": ("simulate.app", "Simulate a published system on a network that fails."),
    "node": ("node.app", "Run one node of a published system as a process."),
}


class LazyCommand(TyperCommand):
    """A command of which only the name and the first line of help are known until it is run."""

    def __init__(self, name: str, target: str, help: str) -> None:
        super().__init__(name, help=help, rich_markup_mode=None)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.loaded.make_context(info_name, args, parent, **extra)

    @cached_property
    def loaded(self) -> Any:
        """The command itself."""
        module, _, name = self._target.partition(".")
        found = getattr(import_module(f"tidings.commands.{module}"), name)
        return get_command(found if isinstance(found, typer.Typer) else single_command(found))


class Commands(TyperGroup):
    """All commands, none of them imported yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (target, help_) in COMMANDS.items():
            self.add_command(LazyCommand(name, target, help_))


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # so that brackets in examples are brackets
    pretty_exceptions_enable=False,
    context_settings=HELP,
    help="""Content-based publish/subscribe: events meet the subscriptions whose SQL filter they satisfy.

\b
  tidings demo
  tidings serve --demo
  tidings explain "origin = 'JFK' AND delay > 60" '{"origin": "JFK", "delay": 45}'
  tidings check "price BETWEEN 8.30 AND 8.70" --domain stocks.toml
  tidings match events.parquet --subscriptions subscriptions.csv --out matches.parquet
  tidings backtest "magnitude > 4.5" --events quakes.parquet --picture rate.png
  tidings analyse subscriptions.parquet --events events.parquet --out analysis/
""",
)


@app.callback(invoke_without_command=True)
def _command(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"tidings {tidings.__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command; an error that the user can correct is one line, not a traceback."""
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        return print(f"tidings {tidings.__version__}")  # 0.09 s; typer takes 0.2 s to read a flag
    try:
        app(arguments, prog_name="tidings")
    except TidingsError as error:
        _complain(error)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _complain(MissingExtraError(package))
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        sys.stderr.close()
    else:
        return
    raise SystemExit(1)


def _complain(error: TidingsError) -> None:
    typer.echo(" ".join(str(error).split("\n")), err=True)
    if isinstance(error, FilterTextError) and (pointer := error.pointer()) is not None:
        typer.echo(pointer, err=True)
