"""Filters and domains as commands are given them: as arguments and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import DomainError, FilterError, TidingsError

if TYPE_CHECKING:
    from tidings.filter.tree import Expression
    from tidings.model.domain import Domain

CONTEXT = 60  # characters of a filter's text shown on either side of an error

Filter = Annotated[str, typer.Argument(metavar="FILTER", help="The filter: the condition of a Spark SQL WHERE clause.")]
DomainFile = Annotated[
    Path | None,
    typer.Option("--domain", metavar="FILE", help="The events' attributes and types, in TOML or JSON."),
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")]


class FilterTextError(TidingsError):
    """A filter's error with the text it is in; `column` is the 1-based place, None if the whole text is wrong."""

    def __init__(self, message: str, text: str, column: int | None) -> None:
        super().__init__(message)
        self.text = text
        self.column = column

    @classmethod
    def of(cls, error: FilterError, text: str) -> FilterTextError:
        return cls(str(error), text, error.column)

    def pointer(self) -> str | None:
        """The line of the text that is wrong and a caret under the place; None if there is no place."""
        return None if self.column is None else point_at(self.text, self.column)


def point_at(text: str, column: int) -> str:
    """The line of a text that has this 1-based column, and a caret under it."""
    from rich.cells import cell_len

    at = min(column - 1, len(text))
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at) if "\n" in text[at:] else len(text)
    first, last = max(start, at - CONTEXT), min(end, at + CONTEXT)
    before = ("…" if first > start else "") + _printable(text[first:at])
    after = _printable(text[at:last]) + ("…" if last < end else "")
    return f"  {before}{after}\n  {' ' * cell_len(before)}^"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)


def parse_text(text: str, domain: Domain) -> Expression:
    """The filter's tree; raises `FilterTextError`, which can point at what is wrong."""
    from tidings.filter.syntax.parser import parse_filter

    try:
        return parse_filter(text, domain)
    except FilterError as error:
        raise FilterTextError.of(error, text) from None


def read_domain(path: Path) -> Domain:
    """The one domain of a file in TOML or JSON."""
    from tidings.model.domain import load_domains

    domains = load_domains(path)
    if len(domains) != 1:
        raise DomainError(f"{path}: the file has {len(domains)} domains ({', '.join(domains)}); give a file of one")
    return next(iter(domains.values()))
