"""`tidings simulate`: play a published system on a network that breaks it on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidings.commands import single_command
from tidings.commands.setting_options import Pairs, SettingsFile, read_settings
from tidings.commands.system_help import SystemCommand

if TYPE_CHECKING:
    from tidings.simulator.measures import RunMeasures
    from tidings.simulator.run import RunOutcome
    from tidings.simulator.scenario import Scenario

MAX_SHOWN = 20  # failures whose command is printed
MAX_KINDS = 12  # of messages that are listed


def simulate(
    system: Annotated[
        str | None, typer.Argument(metavar="SYSTEM", help="The system to simulate: one of those named above.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=100_000, help="Nodes at the start.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Seeds everything that is random.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Simulations to play, with seeds from --seed on.")] = 1,
    churn: Annotated[
        float, typer.Option("--churn", min=0, help="Joins, leaves and crashes in all, for each node at the start.")
    ] = 0.5,
    crashes: Annotated[
        float, typer.Option("--crashes", min=0, max=1, help="The share of churn that is crashes.")
    ] = 0.5,
    loss: Annotated[float, typer.Option("--loss", min=0, max=0.5, help="The share of messages that is lost.")] = 0.0,
    splits: Annotated[int, typer.Option("--splits", min=0, help="How often the network is split in two.")] = 0,
    subscriptions: Annotated[
        int,
        typer.Option("--subscriptions", min=0, help="Subscriptions at first; a quarter as many come later."),
    ] = 8,
    events: Annotated[
        int, typer.Option("--events", min=0, help="Events during churn, and as many after it, which must arrive.")
    ] = 8,
    domain: Annotated[
        Path | None, typer.Option("--domain", metavar="FILE", help="Your own events' attributes, in TOML or JSON.")
    ] = None,
    filters: Annotated[
        Path | None,
        typer.Option(
            "--filters",
            metavar="FILE",
            help="Your own filters, of which subscriptions are a sample: one a line, or a table's column 'filter'.",
        ),
    ] = None,
    event_file: Annotated[
        Path | None,
        typer.Option(
            "--event-file",
            metavar="FILE",
            help="Your own events, to place by and to publish a sample of: Parquet, CSV or JSON; for sonnet XML files "
            "in a folder, or a file with a document as a JSON string on each line.",
        ),
    ] = None,
    churn_ms: Annotated[
        int, typer.Option("--churn-ms", min=1, help="Virtual time in which nodes come and go.")
    ] = 15_000,
    repair_ms: Annotated[
        int, typer.Option("--repair-ms", min=0, help="How long after it everything must be in order again.")
    ] = 20_000,
    bug: Annotated[
        str, typer.Option("--bug", metavar="NAME", help="Plant a bug that a law should find: one of those named above.")
    ] = "",
    keep: Annotated[
        str,
        typer.Option("--keep", metavar="0,3,…", help="Play only these steps, as a failure names them."),
    ] = "",
    laws: Annotated[
        bool, typer.Option("--laws/--no-laws", help="Check the laws of the system after every message, or do not.")
    ] = True,
    mixed: Annotated[
        bool,
        typer.Option("--mixed", help="Each seed chooses its trouble: churn, joins and leaves, loss, splits, none."),
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Processes to play many seeds in.")] = 1,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write everything that happens to a file.")
    ] = None,
    packet: Annotated[
        str, typer.Option("--packet", metavar="EVENT", help="Print the path of an event, as p0, hop by hop (%PATH%).")
    ] = "",
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="FILE", help="Draw that path on the ring, as an SVG picture.")
    ] = None,
    settings: Pairs = None,
    settings_file: SettingsFile = None,
    every: Annotated[bool, typer.Option("--all", help="Simulate every system, one after the other.")] = False,
    again: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Play a trace again, and compare line by line.")
    ] = None,
) -> None:
    """Simulate a published system on a network that fails.

    Subscribers subscribe, and nodes join, leave and crash while events are published; then all is quiet, the system
    repairs itself, and further events have to reach exactly the subscribers whose filters they match. So have those of
    the events before that the system promises whatever happens. Laws are checked after every message. The same
    arguments give the same simulation. A failure prints the law, the command that plays it again, and the fewest steps
    that still break it; the exit status is then 1.

    \b
    Systems:
    %SYSTEMS%

    \b
    Bugs that can be planted:
    %BUGS%

    \b
    Settings, the parameters of the papers, with their defaults:
    %SETTINGS%

    \b
    Examples:
      tidings simulate opchord --nodes 32 --seed 7 --churn 1.5
      tidings simulate bluedove --seeds 100 --mixed --jobs 2
      tidings simulate clusters --seed 3 --trace clusters.jsonl
      tidings simulate --replay clusters.jsonl
      tidings simulate opchord --bug counting
      tidings simulate bluedove --set policy=random --set service_ms=20
      tidings simulate digests --domain stocks.toml --filters filters.txt --event-file events.parquet
      tidings simulate sonnet --churn 0 --packet p0 --draw path.svg
    """
    from tidings.simulator.scenario import Scenario, troubled
    from tidings.systems.overlay import overlay_named, overlays

    if again is not None:
        _replay(again)
        return
    if (system is None) != every:
        raise typer.BadParameter("name a system to simulate, or --all of them, or a trace to --replay")
    try:
        kept = tuple(int(number) for number in keep.split(",")) if keep else None
    except ValueError:
        raise typer.BadParameter(f"--keep {keep}: steps are numbers, with commas between them") from None
    sizes: dict[str, Any] = {"nodes": nodes, "subscriptions": subscriptions, "events": events, "bug": bug}
    files = {"domain": domain, "filters": filters, "event_file": event_file}
    sizes |= {name: str(file) for name, file in files.items() if file is not None}
    sizes["laws"] = laws
    trouble: dict[str, Any] = {"churn": churn, "crashes": crashes, "loss": loss, "splits": splits}
    trouble |= {"churn_ms": churn_ms, "repair_ms": repair_ms, "keep": kept}
    for name in overlays() if system is None else [system]:
        named = overlay_named(name)
        given = read_settings(settings, settings_file, named.system.name)
        named.with_settings(given).bug(bug)  # an unknown one is refused before anything is played
        if (packet or draw) and not (packet and "path" in named.system.abilities):
            raise typer.BadParameter(f"--packet names an event, as p0, and --draw draws its path; {name} has none")
        plans = [
            troubled(name, one, **sizes, settings=given)
            if mixed
            else Scenario(name, seed=one, **sizes, **trouble, settings=given)
            for one in range(seed, seed + seeds)
        ]
        _print_notes(plans[0])
        if seeds == 1:
            _report([_play_one(plans[0], trace, packet, draw)])
        elif trace is not None or packet:
            raise typer.BadParameter("--trace and --packet are of one seed; leave out --seeds")
        else:
            _report(list(_play_many(plans, jobs)))


def _print_notes(plan: Scenario) -> None:
    """Prints what nodes place by, if the events are the user's own."""
    from tidings.simulator.run import placement_notes

    notes = placement_notes(plan) if plan.filters or plan.domain or plan.event_file else None
    if notes is not None:
        typer.echo(notes.chosen, err=True)
        for warning in notes.warnings:
            typer.echo(f"warning: {warning}", err=True)


def _progress(what: str) -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _play_one(plan: Scenario, trace_file: Path | None, packet: str, picture: Path | None) -> RunOutcome:
    from tidings.simulator.run import Run
    from tidings.simulator.trace import Followed, Trace
    from tidings.systems.overlay import overlay_named

    with ExitStack() as stack:
        trace = None
        if trace_file is not None:
            trace = Trace(stack.enter_context(trace_file.open("w", encoding="utf-8")).write)
            trace.begin(plan.arguments)
        progress = stack.enter_context(_progress(f"{plan.system}, virtual ms"))
        bar = progress.add_task("", total=None)
        run = Run(plan, trace=trace, measured=True)
        make_path = overlay_named(plan.system).overlay.event_path
        path = make_path(packet, run.world) if packet and make_path is not None else None
        if path is not None:
            run.world.trace = Followed(trace, path)
        outcome = run.play(lambda done, total: progress.update(bar, completed=done, total=total))
    if trace_file is not None:
        typer.echo(f"trace of {trace.lines:,} lines written to {trace_file}" if trace is not None else "", err=True)
    if path is not None:
        typer.echo("\n".join(path.tree()))
        if picture is not None:
            picture.write_text(path.picture(), encoding="utf-8")
            typer.echo(f"drawn in {picture}", err=True)
    return outcome


def _play_many(plans: list[Scenario], jobs: int) -> Iterator[RunOutcome]:
    from tidings.simulator.run import play

    measured = partial(play, measured=True)
    with _progress(f"{plans[0].system}, seeds") as progress, ExitStack() as stack:
        bar = progress.add_task("", total=len(plans))
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs))
            outcomes: Iterable[RunOutcome] = pool.map(measured, plans, chunksize=8)
        else:
            outcomes = map(measured, plans)
        for outcome in outcomes:
            progress.advance(bar)
            yield outcome


def _report(outcomes: list[RunOutcome]) -> None:
    from tidings.simulator.run import explain, shrink

    failed = [outcome for outcome in outcomes if outcome.violation is not None]
    Console().print(_summary(outcomes))
    if not failed:
        return
    plan, violation = failed[0].plan, failed[0].violation
    assert violation is not None
    if len(failed) > 1:
        for outcome in failed[:MAX_SHOWN]:
            typer.echo(f"{outcome.plan.command}   # {outcome.violation}", err=True)
        if len(failed) > MAX_SHOWN:
            typer.echo(f"… and {len(failed) - MAX_SHOWN:,} more", err=True)
        typer.echo("\nThe first of them, with the steps that it needs:\n", err=True)
    typer.echo(explain(*shrink(plan, violation)), err=True)
    raise typer.Exit(1)


def _summary(outcomes: list[RunOutcome]) -> Table:
    from tidings.simulator.measures import RunMeasures

    table = Table(title=f"{outcomes[0].plan.system}: {len(outcomes):,} simulation{'s' * (len(outcomes) > 1)}")
    table.add_column("what")
    table.add_column("figure", justify="right")
    measures = RunMeasures()
    for outcome in outcomes:
        if outcome.measures is not None:
            measures.merge(outcome.measures)
    broken = Counter(outcome.violation.law for outcome in outcomes if outcome.violation is not None)
    messages, seconds = sum(o.messages for o in outcomes), sum(o.seconds for o in outcomes)
    matches, owed = sum(o.matches for o in outcomes), sum(o.owed for o in outcomes)
    rows = {
        "nodes at the end": f"{sum(o.nodes for o in outcomes):,}",
        "virtual time": f"{sum(o.virtual_ms for o in outcomes) / 1_000:,.0f} s",
        "messages": f"{messages:,}",
        **_cost_rows(measures),
        "messages a second": f"{messages / max(seconds, 1e-9):,.0f}",
        "deliveries": f"{sum(o.deliveries for o in outcomes):,}",
        "matches": f"{matches:,}",
        "of those owed": f"{owed:,} ({owed / max(matches, 1):.0%})",
        "of those delivered": f"{sum(o.delivered for o in outcomes):,}",
        "false negatives, by design": f"{sum(o.false_negatives for o in outcomes):,}",
        "laws broken": ", ".join(f"{law} {count}" for law, count in broken.items()) or "none",
    }
    often = sorted(measures.kinds.items(), key=lambda pair: -pair[1].count)[:MAX_KINDS]
    rows |= {f"  {name}": f"{kind.count:,}" for name, kind in often}
    for what, figure in rows.items():
        table.add_row(what, figure)
    return table


def _cost_rows(measures: RunMeasures) -> dict[str, str]:
    """What deliveries cost, a row each; nothing of what there was none of."""
    from tidings.simulator.measures import quantile

    parts = {"own work": measures.work, "upkeep": measures.upkeep, "repeats": measures.repeats}
    rows = {f"  {name}": f"{count:,}" for name, count in parts.items()}
    rows["bytes"] = f"{measures.bytes / 1_000:,.0f} kB"
    if measures.hops:
        mean = sum(measures.hops) / len(measures.hops)
        rows["hops to a delivery, mean, p99"] = f"{mean:.1f}, {quantile(measures.hops, 0.99)}"
    if measures.latencies_ms:
        latencies = measures.latencies_ms
        rows["latency, p50, p99"] = f"{quantile(latencies, 0.5):,} ms, {quantile(latencies, 0.99):,} ms"
    ratios = measures.load_ratios()
    if ratios is not None:
        rows["load of nodes, max/mean, σ/mean"] = f"{ratios[0]:.1f}, {ratios[1]:.2f}"
    share = f" ({measures.rejected / measures.checks:.0%} of checks)" if measures.checks else ""
    rows["false positives"] = f"{measures.rejected:,}{share}"
    return rows


def _replay(path: Path) -> None:
    """Plays a trace again; raises `TraceError` at the first line that differs."""
    from tidings.simulator.run import Run
    from tidings.simulator.scenario import plan_from
    from tidings.simulator.trace import Trace, TraceComparison, TraceError, read_arguments

    try:
        plan = plan_from(read_arguments(path))
    except ValueError as error:
        raise TraceError(f"{path}: its first line is no simulation's: {error}") from None
    with path.open(encoding="utf-8") as lines:
        comparison = TraceComparison(lines)
        trace = Trace(comparison.write)
        trace.begin(plan.arguments)
        outcome = Run(plan, trace=trace).play()
        comparison.finish()
    broken = f"; {outcome.violation}" if outcome.violation is not None else ""
    typer.echo(f"{path}: {trace.lines:,} lines, and every one happened again{broken}")


app = single_command(simulate, SystemCommand)
