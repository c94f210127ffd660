"""Events from a file, one after the other, for commands that need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tidings.errors import EventError
from tidings.model.event_json import parse_events

SUFFIXES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a Parquet, CSV or JSON file; columns that a row leaves empty are left out of its event."""
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
