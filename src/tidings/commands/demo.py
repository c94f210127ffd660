"""`tidings demo`: see it work on real flights, or on feeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidings.commands.inputs import parse_text
from tidings.errors import TidingsError, did_you_mean


def demo(
    what: Annotated[
        str, typer.Argument(metavar="[flights|feeds]", help="Flights and SQL filters, or feeds and XPath.")
    ] = "flights",
    folder: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="A folder of your own feeds.")] = None,
    own_filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Subscribe yourself: see what this filter gets.")
    ] = None,
    subscribers: Annotated[int, typer.Option(min=1, max=100_000, help="How many others subscribe.")] = 3000,
    seed: Annotated[int, typer.Option(help="The seed of the others' filters.")] = 2013,
) -> None:
    """Match real flights against thousands of filters; show why.

    The events are the flights that left New York in February 2013; the filters are made up.

    \b
      tidings demo
      tidings demo --filter "dest = 'HNL' OR dep_delay > 600"
      tidings demo feeds --filter "//title[contains(., 'Stream')]"
    """
    if what == "feeds":
        from tidings.demo.feed_demo import run as run_feeds

        run_feeds(Console(), folder, own_path=own_filter)
        return
    if what != "flights":
        raise TidingsError(f"there is no demo '{what}'; {did_you_mean(what, ('flights', 'feeds'))}")
    from tidings.demo.batch_demo import run
    from tidings.demo.flights import load_flights
    from tidings.model.infer import infer_domain

    if own_filter is not None:
        parse_text(own_filter, infer_domain(load_flights(), name="flights"))
    run(Console(), subscribers=subscribers, seed=seed, own_filter=own_filter)
