"""A simulation of a user's own domain, filters and events, from files.

Nodes place by the events, as `tidings node --sample` does. What is simulated is a sample of both files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tidings.errors import EventError, FilterError, TidingsError
from tidings.model.domain import Domain, load_domains
from tidings.model.event_files import SAMPLED, events_of, sampled
from tidings.model.event_json import texts_of
from tidings.simulator.workload import Feeds, Pool, RecordPool
from tidings.systems.overlay import overlay_named
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

COLUMN = "filter"  # of a table of filters
TABLES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")


@lru_cache(maxsize=2)
def own_workload(system: str, domain: str, filters: str, events: str) -> Pool:
    """Returns the pools of the files of these names."""
    documents = overlay_named(system).system.needs == "documents"
    if not filters or not events or bool(domain) == documents:
        needed = "--filters and --event-file" if documents else "--domain, --filters and --event-file"
        raise TidingsError(f"{system}: a simulation of your own takes {needed}")
    texts = sampled(_filters_of(Path(filters)), SAMPLED)
    if not texts:
        raise TidingsError(f"{filters}: the file has no filter")
    pool = _document_pool(texts, filters, Path(events)) if documents else _record_pool(domain, texts, filters, events)
    if not pool.events:
        raise EventError(f"{events}: the file has no event")
    return pool


def _record_pool(domain: str, texts: list[str], filters: str, events: str) -> RecordPool:
    bodies = texts_of(sampled(events_of(Path(events)), SAMPLED))
    pool = RecordPool(_domain_in(Path(domain)), texts, bodies, filters_known=False)
    try:
        assert pool.table.count == len(texts)
        assert pool.batch.count == len(bodies)
    except FilterError as error:
        raise TidingsError(f"{filters}: {error}") from None
    except EventError as error:
        raise TidingsError(f"{events}: {error}") from None
    return pool


def _document_pool(paths: list[str], filters: str, events: Path) -> Feeds:
    for path in paths:
        try:
            parse_path(path)
        except FilterError as error:
            raise TidingsError(f"{filters}: {path}: {error}") from None
    documents = sampled(_documents_in(events), SAMPLED)
    for number, document in enumerate(documents):
        try:
            read_document(document)
        except EventError as error:
            raise TidingsError(f"{events}: document {number}: {error}") from None
    return Feeds(tuple(paths), tuple(documents))


def _domain_in(file: Path) -> Domain:
    domains = list(load_domains(file).values())
    if len(domains) != 1:
        raise TidingsError(f"{file}: a simulation has one domain, and the file has {len(domains)}")
    return domains[0]


def _filters_of(file: Path) -> Iterator[str]:
    """A filter a line, or the column `filter` of a table."""
    if file.suffix.lower() in TABLES:
        for row in events_of(file):
            if not isinstance(row.get(COLUMN), str):
                raise TidingsError(f"{file}: a table of filters has a column '{COLUMN}' of texts")
            yield row[COLUMN]
        return
    try:
        yield from (line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise TidingsError(f"cannot read {file}: {error}") from None


def _documents_in(file: Path) -> Iterator[str]:
    """The XML files of a folder, one XML file, or a file with a document as a JSON string on each line."""
    try:
        if file.is_dir():
            yield from (one.read_text(encoding="utf-8") for one in sorted(file.glob("*.xml")))
        elif file.suffix.lower() == ".xml":
            yield file.read_text(encoding="utf-8")
        else:
            yield from (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise EventError(f"cannot read {file}: {error}") from None
