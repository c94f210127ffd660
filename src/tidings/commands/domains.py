"""`tidings domain`: the attributes and types of a service's events."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidings.commands import command_group
from tidings.commands.connection import TokenFile, Url, connected
from tidings.errors import DomainError
from tidings.model.domain import Attribute, Domain, load_domains
from tidings.model.event_files import events_of
from tidings.model.infer import infer_domain

SAMPLED_EVENTS = 1000  # that a domain's types are taken from

app = command_group(
    """Show and change the attributes and types of events.

A service keeps them by domain.

\b
  tidings domain put quotes -a symbol:string -a price:double
  tidings domain put quotes quotes.toml
  tidings domain show quotes
"""
)

Name = Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain's name: a-z, 0-9, _ and -.")]


@app.command("put")
def put(
    name: Name,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A domain in TOML or JSON.")] = None,
    attributes: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME:TYPE", help="An attribute and its type.")
    ] = None,
    events: Annotated[
        Path | None, typer.Option("--events", metavar="FILE", help="Events to take the attributes and types from.")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            metavar="NAME",
            help="How its stream places subscriptions. By default as the service chooses.",
        ),
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Describe a domain's events, by a file, by attributes, or by events that show them.

    \b
      tidings domain put quotes -a symbol:string -a "price:decimal(10,2)"
      tidings domain put flights --events flights.parquet
    """
    if sum((file is not None, bool(attributes), events is not None)) != 1:
        raise typer.BadParameter("give one of FILE, --attribute and --events")
    domain = _read(name, file, attributes or [], events)
    with connected(url, token_file) as client:
        typer.echo(str(client.put_domain(name, domain, placement=placement).domain))


@app.command("list")
def list_(url: Url = None, token_file: TokenFile = None) -> None:
    """List the domains."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("domain", "attributes", ""):
        table.add_column(head)
    with connected(url, token_file) as client:
        for state in client.domains():
            names = ", ".join(attribute.name for attribute in state.domain.attributes)
            table.add_row(state.name, names, "inferred" if state.inferred else "")
    Console().print(table)


@app.command("show")
def show(
    name: Name,
    toml: Annotated[bool, typer.Option("--toml", help="In the form that `domain put` reads.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show a domain: its attributes and what is known of them."""
    with connected(url, token_file) as client:
        state = client.domain(name)
    typer.echo(state.domain.to_toml() if toml else str(state.domain))
    if state.inferred and not toml:
        typer.echo(f"read off its first events; `tidings domain confirm {name}` keeps it so", err=True)


@app.command("confirm")
def confirm(name: Name, url: Url = None, token_file: TokenFile = None) -> None:
    """Confirm a domain that was inferred from its first events."""
    with connected(url, token_file) as client:
        known = client.domain(name)
        typer.echo(str(client.put_domain(name, known.domain, placement=known.placement).domain))


@app.command("delete")
def delete(name: Name, url: Url = None, token_file: TokenFile = None) -> None:
    """Remove a domain that nobody subscribes to any more."""
    with connected(url, token_file) as client:
        client.delete_domain(name)
    typer.echo(f"the domain '{name}' is gone", err=True)


def _read(name: str, file: Path | None, attributes: list[str], events: Path | None) -> Domain:
    if file is not None:
        domains = load_domains(file)
        if len(domains) != 1 and name not in domains:
            raise DomainError(f"{file}: the file has the domains {', '.join(domains)}, and none is '{name}'")
        return domains[name] if name in domains else next(iter(domains.values()))
    if events is not None:
        return infer_domain(list(itertools.islice(events_of(events), SAMPLED_EVENTS)), name=name)
    pairs = [text.rpartition(":") if "<" not in text else text.partition(":") for text in attributes]
    for text, (attribute, colon, type_) in zip(attributes, pairs, strict=True):
        if not (attribute and colon and type_):
            raise typer.BadParameter(f"--attribute {text}: write a name, a colon and a type, such as price:double")
    return Domain(name, [Attribute(attribute, type_) for attribute, _, type_ in pairs])
