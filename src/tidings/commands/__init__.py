"""The commands of `tidings`, one module for those that belong together; `tidings.cli` has their names.

inputs            filters and domains as arguments and files
connection        the options of a service, and a client of it
demo              tidings demo
explain           tidings explain, check
serve             tidings serve
domains           tidings domain
publish           tidings publish
subscriptions     tidings subscribe, subscriptions
receive           tidings pull, tail
data_directories  tidings token, check-data, backup, restore
spark_jobs        tidings match, analyse, adapt
backtest          tidings backtest, over files or a service's log
stream            tidings stream
simulate          tidings simulate
node              tidings node
saturation_command  what a node runs when another one is needed
node_place        where a node listens, and where others find it
system_help       the help of simulate and node, made from the systems' records
setting_options   the settings of a system, as options and as a file
"""

from collections.abc import Callable

import typer
from typer.core import TyperCommand

HELP = {"help_option_names": ["-h", "--help"]}


def command_group(help_: str) -> typer.Typer:
    """Commands under one name, with the settings of `tidings` itself."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,  # of `tidings`, which completes for all of them
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP,
        help=help_,
    )


def single_command(function: Callable[..., None], cls: type[TyperCommand] = TyperCommand) -> typer.Typer:
    """One command, with the settings of `tidings` itself."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(function.__name__, cls=cls, context_settings=HELP)(function)
    return app
