"""The command `tidings`: see it work, serve, ask why, check a filter, match files on Spark.

Exit status: 0 all is well, 1 an input is wrong (one line says what, and where), 2 the command is used wrongly,
3 `match` or `stream` finished and rejected subscriptions.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import typer
from rich.cells import cell_len
from rich.console import Console

import tidings
from tidings.commands import (
    backtest_service,
    data_directories,
    node,
    publish,
    pull,
    serve,
    simulate,
    subscribe,
    subscriptions,
    tail,
    token,
)
from tidings.commands import domains as domain
from tidings.commands import explain as explaining
from tidings.commands.connection import TokenFile, Url
from tidings.commands.system_help import SystemCommand
from tidings.commands.wrong_filter import WrongFilterError
from tidings.errors import DomainError, EventError, FilterError, TidingsError, did_you_mean
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.syntax.writer import to_sql
from tidings.filter.tree import Expression
from tidings.model.domain import Domain, load_domains
from tidings.model.event_json import parse_events
from tidings.model.infer import infer_domain

OUTPUTS = (".parquet", ".json", ".jsonl")
CONTEXT = 60  # characters of a filter's text shown on either side of what is wrong with it

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # so that brackets in examples are brackets
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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

Filter = Annotated[str, typer.Argument(metavar="FILTER", help="The filter: the condition of a Spark SQL WHERE clause.")]
DomainFile = Annotated[
    Path | None,
    typer.Option("--domain", metavar="FILE", help="The events' attributes and types, in TOML or JSON."),
]


def main(arguments: list[str] | None = None) -> None:
    """Run the command; what a user can put right is told in a line, not in a traceback."""
    try:
        app(arguments, prog_name="tidings")
    except WrongFilterError as wrong:
        _complain(wrong)
        if wrong.column is not None:
            typer.echo(point_at(wrong.text, wrong.column), err=True)
    except TidingsError as error:
        _complain(error)
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        sys.stderr.close()
    else:
        return
    raise SystemExit(1)


def point_at(text: str, column: int) -> str:
    """The line of a text that has this 1-based column, and a caret under it."""
    at = min(column - 1, len(text))
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at) if "\n" in text[at:] else len(text)
    first, last = max(start, at - CONTEXT), min(end, at + CONTEXT)
    before = ("…" if first > start else "") + _printable(text[first:at])
    after = _printable(text[at:last]) + ("…" if last < end else "")
    return f"  {before}{after}\n  {' ' * cell_len(before)}^"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)


def _complain(error: TidingsError) -> None:
    typer.echo(" ".join(str(error).split("\n")), err=True)


@app.callback(invoke_without_command=True)
def _command(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"tidings {tidings.__version__}")
        raise typer.Exit


app.command()(serve.serve)
app.add_typer(domain.app, name="domain")
app.command()(publish.publish)
app.command()(subscribe.subscribe)
app.add_typer(subscriptions.app, name="subscriptions")
app.command()(pull.pull)
app.command()(tail.tail)
app.command()(explaining.explain)
app.add_typer(token.app, name="token")
app.command()(data_directories.check_data)
app.command()(data_directories.backup)
app.command()(data_directories.restore)
app.command(cls=SystemCommand)(simulate.simulate)
app.command(cls=SystemCommand)(node.node)


@app.command()
def demo(
    what: Annotated[
        str, typer.Argument(metavar="[flights|feeds]", help="Flights and filters, or feeds and paths.")
    ] = "flights",
    folder: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="Of feeds: your own, as files.")] = None,
    own_filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Subscribe yourself: see what this filter gets.")
    ] = None,
    subscribers: Annotated[int, typer.Option(min=1, max=100_000, help="How many others subscribe.")] = 3000,
    seed: Annotated[int, typer.Option(help="Draws the others' filters; the same seed, the same filters.")] = 2013,
    live: Annotated[
        bool, typer.Option("--live", help="Through the log and Spark, while subscriptions change; takes a minute.")
    ] = False,
) -> None:
    """Match a month of real flights against a few thousand filters, and show who gets what and why.

    \b
      tidings demo
      tidings demo --live
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

    if own_filter is not None:
        _parse(own_filter, infer_domain(load_flights(), name="flights"))
    if live:
        try:
            from tidings.demo.live_demo import run as run_live
        except ModuleNotFoundError as missing:
            raise TidingsError(f"this needs {missing.name}: pip install 'tidings[spark]'") from None
        run_live(Console(), subscribers=subscribers, seed=seed, own_filter=own_filter)
        return
    run(Console(), subscribers=subscribers, seed=seed, own_filter=own_filter)


@app.command()
def check(
    filter: Filter,
    domain: DomainFile = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="FILE", help="Events to take the types from: .parquet, .csv, .json or .jsonl."
        ),
    ] = None,
) -> None:
    """Is this a good filter, and how is it read? Points at what is wrong otherwise.

    Without a domain or events, it is checked against the flights of `tidings demo`.

    \b
      tidings check "dep_delay BETWEEN 60 AND 120 AND dest LIKE 'B%'"
      tidings check "price > 8.30 OR volume >= 1e6" --domain stocks.toml
      tidings check "magnitude > 5" --events quakes.jsonl
    """
    if domain is not None and events is not None:
        raise typer.BadParameter("give --domain or --events, not both")
    chosen = _read_domain(domain) if domain is not None else _domain_of_events(events)
    tree = _parse(filter, chosen)
    typer.echo(f"✓ a filter over the domain '{chosen.name}'")
    typer.echo(f"\nread as\n  {to_sql(tree)}")
    typer.echo("\nnormal form")
    for line in tidings.describe_filter(filter, chosen).splitlines():
        typer.echo(f"  {line}")


class MatchOutput(StrEnum):
    ids = "ids"
    pairs = "pairs"


@app.command()
def match(
    events: Annotated[
        str, typer.Argument(metavar="EVENTS", help="The events: a file or directory of Parquet, JSON or CSV.")
    ],
    subscriptions: Annotated[
        str, typer.Option("--subscriptions", metavar="SUBS", help="A table with the columns id and filter.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="OUT", help="Where the matches go: .parquet, .json or .jsonl.")],
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
    output: Annotated[
        MatchOutput, typer.Option("--output", help="An array of ids for each event, or a row for each match.")
    ] = MatchOutput.ids,
) -> None:
    """Match a table of events against a table of subscriptions, on Spark.

    The events' own columns and types are what filters speak of. Subscriptions that cannot be read are
    written beside the output, and the exit status is then 3.

    \b
      tidings match events.parquet --subscriptions subscriptions.csv --out matches.parquet
      tidings match events/ --subscriptions subs.jsonl --out pairs.json --output pairs --master spark://host:7077
    """
    try:
        from tidings.commands.match import run
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[spark]'") from None
    if Path(out).suffix.lower() not in OUTPUTS:
        raise typer.BadParameter(f"--out {out}: matches are written to {', '.join(OUTPUTS)}")
    console = Console(stderr=True)
    if run(events, subscriptions=subscriptions, out=out, master=master, output=output.value, console=console):
        raise typer.Exit(3)


class TimeUnit(StrEnum):
    s = "s"
    ms = "ms"
    us = "us"


@app.command()
def backtest(
    filter: Filter,
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="PATH", help="The events: a file or directory of Parquet, JSON or CSV."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--subscriptions", metavar="SUBS", help="A table with id and filter, in which --against is an id."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="ID|FILTER", help="The subscription to compare with.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="The column that says when an event was.")
    ] = None,
    time_unit: Annotated[
        TimeUnit | None, typer.Option("--time-unit", help="What a time in integers counts, since 1970.")
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="1h", help="The stretch of time to count by: 15m, 1h, 1d, 1w, 1mo."),
    ] = None,
    picture: Annotated[
        str | None, typer.Option("--picture", metavar="FILE.png", help="Draw the rate over time to this file.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, max=1000, help="Events to show of each kind.")] = 5,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
    logged: Annotated[
        str | None, typer.Option("--domain", metavar="NAME", help="Instead of --events: a domain in a service's log.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="In a log: the first position, or a time.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="WHERE", help="In a log: the position, or time, to end before.")
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """What would this filter have delivered over stored events, and how does it differ from another?

    \b
      tidings backtest "magnitude > 4.5" --events quakes.parquet
      tidings backtest "price > 8.30" --events quotes/ --time day --bucket 1w --picture rate.png
      tidings backtest "price > 8.30" --events quotes/ --subscriptions subscriptions.csv --against oil-1
      tidings backtest "price > 8.30" --events quotes/ --against "price > 8.50"
      tidings backtest "price > 8.30" --domain quotes --url http://127.0.0.1:8080 --against oil-1
    """
    if (events is None) == (logged is None):
        raise typer.BadParameter("give one of --events PATH, and --domain NAME of a service")
    if events is None:
        assert logged is not None
        asked = backtest_service.Question(filter, logged, against, start, end, samples)
        _checked(asked)
        Console().print(backtest_service.run(asked, url=url, token_file=token_file, console=Console(stderr=True)))
        return
    try:
        from tidings.commands.backtest import Question, run
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[spark]'") from None
    unit = None if time_unit is None else time_unit.value
    question = Question(filter, events, table, against, time, unit, bucket, picture, samples)
    _checked(question)
    try:
        found = run(question, master=master, console=Console(stderr=True))
    except FilterError as error:
        raise WrongFilterError.of(error, filter) from None
    Console().print(found)


@app.command()
def analyse(
    subscriptions: Annotated[
        str,
        typer.Argument(metavar="SUBSCRIPTIONS", help="A table with id and filter, and where wanted subscriber."),
    ],
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="PATH", help="Typical events: a file or directory of Parquet, JSON or CSV."),
    ] = None,
    domain: DomainFile = None,
    subscriber: Annotated[
        str | None,
        typer.Option("--subscriber", metavar="COLUMN", help="Whose a subscription is; by default subscriber."),
    ] = None,
    sample: Annotated[int, typer.Option("--sample", min=1, max=1_000_000, help="Events to match.")] = 2_000,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Write tables and pictures to this directory.")
    ] = None,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
) -> None:
    """What is a table of subscriptions like: which are in vain, where do they pile up, who costs what?

    Tells which never or always match, which are equivalent or covered by others, and by which indices and
    dimensions to place them. Types come from the events, or from a domain.

    \b
      tidings analyse subscriptions.parquet --events events.parquet
      tidings analyse subscriptions.csv --domain flights.toml --out analysis/
    """
    if events is None and domain is None:
        raise typer.BadParameter("give --events or --domain: filters are read by the types of the attributes")
    try:
        from tidings.commands.analyse import Question, run
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[spark]'") from None
    chosen = None if domain is None else _read_domain(domain)
    question = Question(subscriptions, events, chosen, subscriber, sample, out)
    Console().print(run(question, master=master, console=Console(stderr=True)))


@app.command()
def adapt(
    subscriptions: Annotated[str, typer.Argument(metavar="SUBSCRIPTIONS", help="A table with id and filter.")],
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="PATH", help="The history: a file or directory of Parquet, JSON or CSV."),
    ] = None,
    domain: DomainFile = None,
    placement: Annotated[
        list[str] | None, typer.Option("--placement", metavar="NAME", help="Only this one; again for others.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="That share the work; by default as Spark has cores.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Publish the Views in this directory.")
    ] = None,
    mailboxes: Annotated[
        str | None,
        typer.Option("--mailboxes", metavar="FILE", help="Group the mailboxes of a store by what is asked."),
    ] = None,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
) -> None:
    """Adapt placements to all subscriptions and the history of events: quantiles, indices, dimensions, clusters.

    A View is published with the next epoch where it says something else than the one that is there.

    \b
      tidings adapt subscriptions.parquet --events history/ --out views/
      tidings adapt subscriptions.parquet --events history/ --placement digests --mailboxes told.sqlite
    """
    if events is None and domain is None:
        raise typer.BadParameter("give --events or --domain: filters are read by the types of the attributes")
    try:
        from tidings.commands.adapt import Wish, run
        from tidings.pipeline.jobs.adaptation_report import report
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[spark]'") from None
    chosen = None if domain is None else _read_domain(domain)
    names = None if not placement else tuple(placement)
    wish = Wish(subscriptions, events, chosen, names, partitions, out, mailboxes)
    Console().print(report(run(wish, master=master, console=Console(stderr=True))))


@app.command()
def stream(
    source: Annotated[
        str, typer.Option("--source", metavar="SOURCE", help="log:DIR, files:DIR, feeds:DIR or kafka:HOST:PORT/TOPIC.")
    ],
    subscriptions: Annotated[
        str,
        typer.Option(
            "--subscriptions", metavar="SUBS", help="A table with the columns id and filter, or a compiled index."
        ),
    ],
    sink: Annotated[
        str, typer.Option("--sink", metavar="SINK", help="parquet:DIR, store:FILE, kafka:HOST:PORT/TOPIC or console.")
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="DIR", help="Where the query keeps how far it has come.")
    ],
    trigger: Annotated[
        str, typer.Option("--trigger", metavar="TIME", help="Between micro-batches; now ends when all is matched.")
    ] = "0.5s",
    domain: DomainFile = None,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
    output: Annotated[
        MatchOutput, typer.Option("--output", help="An array of ids for each event, or a row for each match.")
    ] = MatchOutput.ids,
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Go on after the last position that the store knows, with a new checkpoint."),
    ] = False,
    packages: Annotated[
        str | None,
        typer.Option("--packages", metavar="MAVEN", help="Packages for Spark; for Kafka, by default its connector."),
    ] = None,
) -> None:
    """Match events as they come, on Spark, until Ctrl-C or SIGTERM; started again, it goes on where it was.

    Subscriptions may change meanwhile: the table is compiled again when its file changes, and versions that
    others publish in an index are taken up with the next micro-batch.

    \b
      tidings stream --source log:data/log --domain flights.toml --subscriptions data/index \\
        --sink store:data/notifications.sqlite --checkpoint data/query
      tidings stream --source files:incoming/ --subscriptions subs.csv --sink parquet:matches --checkpoint query
    """
    try:
        from tidings.commands import stream as command
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[spark]'") from None
    chosen = None if domain is None else _read_domain(domain)
    request = command.Request(
        source, subscriptions, sink, checkpoint, trigger, output.value, master, chosen, recover, packages
    )
    try:
        rejected = command.run(request, Console(stderr=True))
    except command.Usage as error:
        raise typer.BadParameter(str(error)) from None
    if rejected:
        raise typer.Exit(3)


class _Checkable(Protocol):
    def check(self) -> None: ...


def _checked(question: _Checkable) -> None:
    try:
        question.check()
    except TidingsError:
        raise
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _parse(text: str, domain: Domain) -> Expression:
    try:
        return parse_filter(text, domain)
    except FilterError as error:
        raise WrongFilterError.of(error, text) from None


def _read_domain(path: Path) -> Domain:
    domains = load_domains(path)
    if len(domains) != 1:
        raise DomainError(f"{path}: the file has {len(domains)} domains ({', '.join(domains)}); give a file of one")
    return next(iter(domains.values()))


def _domain_of_events(path: Path | None) -> Domain:
    """The domain of a file of events; of the bundled flights where there is none."""
    if path is None:
        from tidings.demo.flights import load_flights

        return infer_domain(load_flights(), name="flights")
    try:
        match path.suffix.lower():
            case ".parquet":
                return infer_domain(pq.read_schema(path), name=path.stem)
            case ".csv":
                return infer_domain(pyarrow.csv.read_csv(path), name=path.stem)
            case ".json" | ".jsonl" | ".ndjson" as suffix:
                read = parse_events(path.read_bytes(), lines=suffix != ".json")
                return infer_domain(read, name=path.stem)
    except (OSError, pa.ArrowException) as error:
        raise EventError(f"cannot read {path}: {error}") from error
    raise typer.BadParameter(f"{path}: events come in a file .parquet, .csv, .json or .jsonl")
