"""Versions of the subscriptions of many domains, for a stream that they share.

    <number>.json          {"members": {"ada.quotes": "member-5f0c….json", …}}
    member-<digest>.json   {"domain": …, "rows": [[number, filter], …]}, named by what is in it

All of it is in the query's own directory, so that a batch that is run again finds its version. A change writes the
file of the domain that changed and a new list; the other domains' files stay. Rows are texts: a worker compiles
those of a domain when it first sees an event of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tidings.model.domain import Domain
from tidings.pipeline.job_errors import CheckpointError
from tidings.pipeline.sources.version_gate import Covers, forget_covers, write_covers
from tidings.pipeline.steps.shipped_files import withdraw
from tidings.pipeline.streams.checkpoint import Checkpoint, link, sync_file, write_durably
from tidings.pipeline.streams.versioned_tasks import shipped_name
from tidings.store.log.log_files import sync_directory


@dataclass
class Member:
    """A domain in a shared stream: what its events are matched against."""

    domain: Domain
    rows: dict[int, str] = field(default_factory=dict)  # filters by number

    def to_text(self) -> str:
        return json.dumps({"domain": self.domain.to_dict(), "rows": sorted(self.rows.items())}) + "\n"

    @staticmethod
    def from_text(text: str) -> Member:
        form = json.loads(text)
        return Member(Domain.from_json(form["domain"]), dict(form["rows"]))


def read_members(path: Path) -> dict[str, str]:
    """The file of each domain in a version, by its key."""
    members: dict[str, str] = json.loads(path.read_text())["members"]
    return members


class SharedVersions:
    """Publishes versions for one query, which runs in the same process."""

    problem: str | None = None  # none is ever refused

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._folder = checkpoint.versions
        self._ships = not (spark.sparkContext.master or "").startswith("local[")
        self._shipped: set[str] = set()
        self._files: dict[str, str] = {}  # by the key of a domain, in the current version
        self.current = self._last()
        if self._ships:
            for number in self._numbers():
                self._ship(f"{number}.json", self._members(number).values())

    @property
    def folder(self) -> Path:
        return self._folder

    def publish(self, members: Mapping[str, Member], changed: set[str]) -> int:
        """Have these domains from the next batch on; of those in `changed`, and of new ones, files are written."""
        files = {key: self._files[key] for key in members.keys() & self._files.keys() if key not in changed}
        written = []
        for key in members.keys() - files.keys():
            text = members[key].to_text()
            files[key] = f"member-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
            path = self._folder / files[key]
            if not path.exists():
                beside = path.with_name(f".{path.name}.{os.getpid()}")
                beside.write_text(text)
                beside.replace(path)
                written.append(path)
        for path in written:
            sync_file(path)
        number = self.current + 1
        if written:
            sync_directory(self._folder)
        write_durably(self._folder / f"{number}.json", json.dumps({"members": dict(sorted(files.items()))}) + "\n")
        if self._ships:
            self._ship(f"{number}.json", files.values())
        write_durably(self._folder / "current", f"{number}\n")
        self._files, self.current = files, number
        self._forget()
        return number

    def covers(self, revision: int) -> None:
        """Say that the current version has the catalogue up to a revision."""
        write_covers(self._folder, Covers(self.current, revision))

    def close_gate(self) -> None:
        forget_covers(self._folder)

    def look(self) -> None:
        """Nothing to look for: versions are published here."""

    def stop(self) -> None:
        """Nothing runs."""

    def _members(self, number: int) -> dict[str, str]:
        return read_members(self._folder / f"{number}.json")

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal())

    def _last(self) -> int:
        """The last version that there is; whatever a batch may have been pinned to has to be among them."""
        numbers = self._numbers()
        last = numbers[-1] if numbers else 0
        pinned = [self._checkpoint.version_of(batch) for batch in self._checkpoint.unfinished()]
        for version in pinned:
            if version is None:
                continue
            try:
                lost = [name for name in self._members(version).values() if not (self._folder / name).exists()]
            except (OSError, ValueError, KeyError):
                lost = [f"{version}.json"]
            if lost:
                raise CheckpointError(
                    f"checkpoint: {self._folder / lost[0]} is missing or damaged, which the last batch needs; restore "
                    "a copy of the whole directory, or recover: go on with a new checkpoint"
                )
        return max([last, *(version for version in pinned if version is not None)])

    def _ship(self, name: str, files: Iterable[str]) -> None:
        """Have Spark bring a version to executors that do not see the driver's disk."""
        own = shipped_name(self._checkpoint.query, name)
        link(self._folder / name, self._folder / own)
        for wanted in [*files, own]:
            if wanted not in self._shipped:
                self._spark.sparkContext.addFile(str(self._folder / wanted))
                self._shipped.add(wanted)

    def _forget(self) -> None:
        """Remove the versions that no batch can be run with any more, and the files that only they had."""
        oldest = self._checkpoint.oldest_needed()
        if oldest is None:
            return
        needed = {"current", "covers"}
        for number in self._numbers():
            name = f"{number}.json"
            if number < oldest:
                (self._folder / name).unlink()
            else:
                own = shipped_name(self._checkpoint.query, name)
                needed |= {name, own, *self._members(number).values()}
        gone = {name for name in os.listdir(self._folder) if name not in needed and not name.startswith(".")}
        if self._ships:
            shipped = gone & self._shipped
            if shipped and not withdraw(self._spark.sparkContext, shipped):
                gone -= shipped
            self._shipped -= gone
        for name in gone:
            (self._folder / name).unlink(missing_ok=True)
