"""The options that name a service, and a client of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.commands.inputs import FilterTextError

if TYPE_CHECKING:
    from tidings.client import Client

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The service; without it $TIDINGS_URL, else http://127.0.0.1:8080."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="A file with the token; without it $TIDINGS_TOKEN, $TIDINGS_TOKEN_FILE, else ./tidings-data/token.",
    ),
]


@contextlib.contextmanager
def connected(url: str | None, token_file: Path | None, *, patient: bool = False) -> Iterator[Client]:
    """A client of the service. Gives up after ten seconds without it, unless it is to be `patient`."""
    from tidings.client import Client, Retries

    retries = Retries() if patient else Retries(for_seconds=10.0)
    with Client(url, token_file=token_file, retries=retries) as client:
        yield client


@contextlib.contextmanager
def about_filter(text: str) -> Iterator[None]:
    """Turn what the service says of a filter into an error that points into its text."""
    from tidings.client import ServiceError

    try:
        yield
    except ServiceError as error:
        if error.pointer == "/filter":
            raise FilterTextError(error.detail or error.title, text, error.column) from None
        raise


def as_line(value: Any) -> str:
    """A value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False)
