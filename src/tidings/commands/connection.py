"""What the commands that speak to a service share: its options, and how one is reached."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.commands.wrong_filter import WrongFilterError
from tidings.errors import TidingsError

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


def sub_app(help_: str) -> typer.Typer:
    """Commands under one name, in the manner of `tidings` itself."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=help_,
    )


@contextlib.contextmanager
def connected(url: str | None, token_file: Path | None, *, patient: bool = False) -> Iterator[Client]:
    """A client of the service; for a person, who would rather be told soon that it is not there."""
    try:
        from tidings.client import Client, Retries
    except ModuleNotFoundError as missing:
        raise TidingsError(f"this needs {missing.name}: pip install 'tidings[service]'") from None
    retries = Retries() if patient else Retries(for_seconds=10.0)
    with Client(url, token_file=token_file, retries=retries) as client:
        yield client


@contextlib.contextmanager
def about_filter(text: str) -> Iterator[None]:
    """Have what the service says of a filter point into its text."""
    from tidings.client import ServiceError

    try:
        yield
    except ServiceError as error:
        if error.pointer == "/filter":
            raise WrongFilterError(error.detail or error.title, text, error.column) from None
        raise


def as_line(value: Any) -> str:
    """JSON in one line, for other programs and for eyes."""
    return json.dumps(value, ensure_ascii=False)
