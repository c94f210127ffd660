"""`tidings token`: who may speak to a service, and as which tenant. Works on the service's data, not over HTTP."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidings.commands.connection import sub_app
from tidings.errors import TidingsError
from tidings.service.data.data_directory import DEFAULT_DATA, DEFAULT_TENANT, DataDirectory

if TYPE_CHECKING:
    from tidings.store.catalogue import Catalogue

app = sub_app(
    """The tokens of a service. Each is of one tenant, who sees nothing of the others.

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


@app.command("create")
def create(
    tenant: Tenant,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="What it is for.")] = "",
    data: Data = Path(DEFAULT_DATA),
    catalogue: CatalogueUrl = None,
) -> None:
    """Make a token and print it. It is not kept anywhere, only its hash is: whoever loses it makes another."""
    with _opened(data, catalogue) as opened:
        typer.echo(opened.create_token(tenant, label))


@app.command("list")
def list_(tenant: Tenant = DEFAULT_TENANT, data: Data = Path(DEFAULT_DATA), catalogue: CatalogueUrl = None) -> None:
    """A tenant's tokens, without their secrets."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("id", "label", "made"):
        table.add_column(head)
    with _opened(data, catalogue) as opened:
        for row in opened.tokens(tenant):
            made = dt.datetime.fromtimestamp(row.created / 1_000_000, dt.UTC)
            table.add_row(row.id, row.label, f"{made:%Y-%m-%d %H:%M}Z")
    Console().print(table)


@app.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `token list` shows it.")],
    tenant: Tenant = DEFAULT_TENANT,
    data: Data = Path(DEFAULT_DATA),
    catalogue: CatalogueUrl = None,
) -> None:
    """Have a token be none any more; a service that runs notices within seconds."""
    with _opened(data, catalogue) as opened:
        if not opened.revoke_token(tenant, id):
            raise TidingsError(
                f"token: {tenant} has no {id}; `tidings token list --tenant {tenant}` shows those it has"
            )
    typer.echo(f"{id} is revoked", err=True)


def _opened(data: Path, catalogue: str | None) -> Catalogue:
    try:
        from tidings.store.catalogue import Catalogue
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[service]'") from None
    place = DataDirectory(data).catalogue
    if catalogue is None and not place.exists():
        raise TidingsError(f"token: {data} has no catalogue; start `tidings serve --data {data}` once, or give --data")
    return Catalogue(catalogue or place)
