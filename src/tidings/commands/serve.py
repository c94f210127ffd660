"""`tidings serve`: the whole service on this machine, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tidings.errors import did_you_mean
from tidings.extras import require
from tidings.service.data.data_directory import CATALOGUE, DEFAULT_DATA, LOG, DataDirectory
from tidings.service.gateway.gateway_settings import read_limits, read_quotas
from tidings.systems.interface import AUTO, systems

if TYPE_CHECKING:
    from tidings.service.supervisor import ServicePlan

HOST, PORT = "127.0.0.1", 8080
DEMO_RETRY_SECONDS = 20.0  # long enough for a gateway that crashed to be started again


def serve(
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = HOST,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port to listen at.")] = PORT,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="The data directory, where everything is kept; created if missing."),
    ] = Path(DEFAULT_DATA),
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
    catalogue: Annotated[
        str | None,
        typer.Option(
            "--catalogue",
            metavar="URL",
            envvar=CATALOGUE,
            help="postgresql://…; without it, a file in the data directory. A password is safer in the variable.",
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            envvar=LOG,
            help="kafka://host:port/topic; without it, files in the data directory. A password goes into the variable.",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Publish real flights, and show who receives what.")] = False,
    recover: Annotated[
        bool, typer.Option("--recover", help="Continue although the log has lost events that were never matched.")
    ] = False,
    dev_webhooks: Annotated[
        bool, typer.Option("--dev-webhooks", help="For development: allow webhooks to this machine, and over http.")
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="A TLS certificate, needed to listen beyond this machine."),
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The certificate's key.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A host name that requests may use.")
    ] = None,
    retain: Annotated[
        list[str] | None,
        typer.Option(
            "--retain",
            metavar="LIMIT",
            help="How long to keep events that nobody needs any more: 7d, 12h, 50gb, forever. By default 7d.",
        ),
    ] = None,
    quotas: Annotated[
        Path | None,
        typer.Option("--quotas", metavar="FILE", help="The tenants' quotas, in TOML: see docs/service.md."),
    ] = None,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag",
            min=1,
            metavar="EVENTS",
            help="How many events of a domain may wait for Spark before publishers have to wait.",
        ),
    ] = None,
    adapt_every: Annotated[
        float | None,
        typer.Option(
            "--adapt-every",
            min=0,
            metavar="SECONDS",
            help="How often to check whether another placement, or grouped mailboxes, would be cheaper; 0: never. "
            "By default 600.",
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            metavar="NAME",
            help="The placement of domains that have a stream of their own. By default the cheapest of all.",
        ),
    ] = None,
    share_up_to: Annotated[
        int | None,
        typer.Option(
            "--share-up-to",
            min=0,
            metavar="N",
            help="Domains with up to N subscriptions share one stream; 0: every domain has its own. By default 2,000.",
        ),
    ] = None,
) -> None:
    """Run the service until Ctrl-C or SIGTERM.

    It takes events, matches them on Spark and delivers them; started again, it continues where it stopped.

    \b
      tidings serve
      tidings serve --demo
      tidings serve --data /var/lib/tidings --port 8090 --master spark://master:7077
    """
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--certificate and --key go together")
    limits = tuple(retain or ())
    read_limits(limits)  # here, so that the error is not the gateway's
    if quotas is not None:
        read_quotas(quotas)
    if placement is not None and placement not in (known := (AUTO, *systems())):
        raise typer.BadParameter(f"--placement: no stream has '{placement}'; {did_you_mean(placement, known)}")
    require("fastapi", "sqlalchemy", "pyspark")  # before a child process fails without them
    from tidings.service.supervisor import ServicePlan

    plan = ServicePlan(
        DataDirectory(data),
        host=host,
        port=port,
        master=master,
        catalogue=catalogue,
        log=log,
        recover=recover,
        dev_webhooks=dev_webhooks,
        certificate=certificate,
        key=key,
        allowed_hosts=tuple(allow_host or ()),
        retain=limits,
        quotas=quotas,
        max_lag=max_lag,
        adapt_every=adapt_every,
        placement=placement,
        share_up_to=share_up_to,
    )
    run(plan, Console(), demo=demo)


def run(plan: ServicePlan, console: Console, *, demo: bool = False) -> None:
    """Serve until stopped; raises an error if the service cannot be started."""
    from tidings.service.data.private_files import be_private
    from tidings.service.supervisor import Supervisor, prepared

    be_private()
    logging.basicConfig(level=logging.WARNING, format="serve: %(message)s")
    data = plan.data
    if demo and console.is_terminal:  # the terminal shows the demo's table, so the processes write to a file
        plan = replace(plan, output=data.path / "serve.log")
    with prepared(plan) as new, contextlib.ExitStack() as ended:
        _introduce(console, plan, new)
        supervisor = Supervisor(plan)

        def ready() -> None:
            _say(console, "\n".join(["", "ready. Try, in another terminal:", *try_next(plan, demo=demo), ""]))
            if demo:
                from tidings.client import Client, Retries
                from tidings.demo.live_demo import LiveDemo

                client = Client(plan.url, token=data.read_token(), retries=Retries(for_seconds=DEMO_RETRY_SECONDS))
                live = LiveDemo(client, console)
                ended.callback(live.stop)
                live.start()

        supervisor.run(ready, ending=ended.close)
    _say(console, "stopped; everything is kept in " + shown(data.path))


def _introduce(console: Console, plan: ServicePlan, new: bool) -> None:
    lines = [
        f"Tidings at {plan.url}",
        f"data       {shown(plan.data.path)}" + (" (new)" if new else ""),
        f"token      {shown(plan.data.token)}, to be sent as Authorization: Bearer",
        f"interface  {plan.url}/v1/docs",
        "",
        "starting the gateway and Spark …",
    ]
    _say(console, "\n".join(lines))


def try_next(plan: ServicePlan, *, demo: bool) -> list[str]:
    """Three commands to copy, which work in this order."""
    tidings = "tidings" if shutil.which("tidings") else shlex.quote(shown(Path(sys.executable).with_name("tidings")))
    token = shlex.quote(shown(plan.data.token))
    options = "" if plan.port == PORT and plan.host == HOST else f" --url {plan.url}"
    options += "" if plan.data.path == Path(DEFAULT_DATA).absolute() else f" --token-file {token}"
    if demo:
        return [
            f"""  {tidings} subscribe flights "dest = 'HNL' OR dep_delay > 300" --id late{options}""",
            f"  {tidings} tail late{options}",
            f"""  curl -s -H "Authorization: Bearer $(cat {token})" {plan.url}/v1/health""",
        ]
    return [
        f"""  {tidings} publish quotes '{{"symbol": "ACME", "price": 8.40}}'{options}""",
        f"""  {tidings} subscribe quotes "symbol = 'ACME' AND price > 8.30" --id dear --start earliest{options}""",
        f"  {tidings} tail dear{options}",
    ]


def shown(path: Path) -> str:
    """The path, relative to the current folder if it is below it."""
    with contextlib.suppress(ValueError):
        return os.path.join(".", path.relative_to(Path.cwd()))
    return str(path)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)  # a wrapped command cannot be copied
