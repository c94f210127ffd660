"""Files of events: Parquet, CSV and JSON, read one by one, and samples of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tidings.errors import EventError

if TYPE_CHECKING:
    from tidings.model.domain import Domain
    from tidings.model.event import EventBatch

SUFFIXES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")
SAMPLED = 20_000  # events that are taken from a file for a sample

T = TypeVar("T")


def read_sample(path: Path, domain: Domain) -> EventBatch:
    """Up to SAMPLED events of a file, the same ones every time, as columns of their domain."""
    from tidings.model.event import read_events

    return read_events(sampled(events_of(path), SAMPLED), domain)


def sampled(items: Iterable[T], most: int) -> list[T]:
    """At most so many of the items, each as likely as any other, the same ones every time; in their order."""
    random = Random(0)
    kept: list[tuple[int, T]] = []
    for number, item in enumerate(items):
        if len(kept) < most:
            kept.append((number, item))
        elif (place := random.randrange(number + 1)) < most:
            kept[place] = (number, item)
    return [item for _, item in sorted(kept, key=lambda pair: pair[0])]


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a Parquet, CSV or JSON file, one by one; empty columns are left out of an event."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from tidings.model.event_json import parse_events

    try:
        match path.suffix.lower():
            case ".parquet":
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(batch_size=2000):
                        yield from map(_without_nulls, batch.to_pylist())
            case ".csv":
                for batch in pyarrow.csv.open_csv(path):
                    yield from map(_without_nulls, batch.to_pylist())
            case ".json":
                yield from parse_events(path.read_bytes())
            case ".jsonl" | ".ndjson":
                yield from _lines(path)
            case _:
                raise EventError(f"{path}: events come in a file {', '.join(SUFFIXES)}")
    except (OSError, pa.ArrowException) as error:
        raise EventError(f"cannot read {path}: {error}") from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """One event a line, however long the file is."""
    from tidings.model.event_json import parse_events

    with path.open("rb") as file:
        for row, line in enumerate(file):
            if not line.strip():
                continue
            try:
                yield from parse_events(line, lines=True)
            except EventError as error:
                raise EventError(error.reason, row=row, attribute=error.attribute) from None


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
