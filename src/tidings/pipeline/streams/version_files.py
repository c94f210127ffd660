"""How versions of the subscriptions reach a running query.

The versions that a query may have to match against lie in its own directory, so that a batch that is run again finds
its version, whatever became of the index:

    <number>.json   a version: its files (see `steps.index_version`), or {"members": {"ada.quotes": "member-….json", …}}
    current         the number of the one that the source pins to its next micro-batch

A version is named as the current one only when every worker finds its files. `VersionFeed` follows an index, in whose
directory anybody may publish versions at any time; its files are links. `SharedVersions` are published here, for a
stream that many small domains share:

    member-<digest>.json   {"domain": …, "rows": [[number, filter], …]}, named by what is in it

A change writes the file of the domain that changed and a new list; the other domains' files stay. Rows are texts: a
worker, which has the index of such a domain, reads them when it first sees an event of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidings.errors import TidingsError
from tidings.model.domain import Domain
from tidings.pipeline.build.index_directory import IndexDirectory, Manifest, PublishedVersion, describe_version
from tidings.pipeline.job_errors import CheckpointError, PipelineError
from tidings.pipeline.runtime.spark_workarounds import is_local, withdraw
from tidings.pipeline.sources.version_gate import Covers, forget_covers, write_covers
from tidings.pipeline.steps.index_version import shipped_name
from tidings.pipeline.streams.checkpoint import Checkpoint, link, sync_file, write_durably
from tidings.store.log.log_files import sync_directory

LOOK_SECONDS = 0.05

_log = logging.getLogger("tidings.pipeline")


class QueryVersions:
    """The versions in a query's directory: written, brought to executors, removed when no batch can need them."""

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._ships = not is_local(spark)
        self._shipped: set[str] = set()
        self.folder = checkpoint.versions

    def bring_all(self) -> None:
        """Have the executors of a query that starts again find the versions that are there."""
        for number in self.numbers() if self._ships else ():
            self._ship(self.path(number))

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal())

    def current(self) -> int:
        """The version that was named last; 0 if none was."""
        try:
            return int((self.folder / "current").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def publish(self, number: int, form: dict[str, Any]) -> None:
        """Write a version whose files are there, and name it as the current one."""
        write_durably(self.path(number), json.dumps(form) + "\n")
        if self._ships:
            self._ship(self.path(number))
        write_durably(self.folder / "current", f"{number}\n")

    def forget(self) -> None:
        """Remove the versions that no batch can be run with any more, and the files that only they had."""
        oldest = self._checkpoint.oldest_needed()
        if oldest is None:
            return
        needed = {"current", "covers"}
        for number in self.numbers():
            path = self.path(number)
            if number < oldest:
                path.unlink()
            else:
                needed |= {path.name, shipped_name(self._checkpoint.query, path.name), *files_of(path)}
        gone = {name for name in os.listdir(self.folder) if name not in needed and not name.startswith(".")}
        if self._ships:
            shipped = gone & self._shipped
            if shipped and not withdraw(self._spark.sparkContext, shipped):
                gone -= shipped
            self._shipped -= gone
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)

    def _ship(self, path: Path) -> None:
        """Have Spark bring a version to executors that do not see the driver's disk."""
        own = path.with_name(shipped_name(self._checkpoint.query, path.name))
        link(path, own)
        for name in [*files_of(path), own.name]:
            if name not in self._shipped:
                self._spark.sparkContext.addFile(str(path.with_name(name)))
                self._shipped.add(name)


def files_of(path: Path) -> list[str]:
    """Returns the files that a version in a query's directory needs, beside its own."""
    form = json.loads(path.read_text())
    if "members" in form:
        return list(form["members"].values())
    names = [*form["shards"], *form["changes"], *([form["overridden"]] if form["overridden"] else [])]
    if form.get("placed") is not None:
        layout = json.loads(path.with_name(form["placed"]).read_text())
        names += [form["placed"], *(file["name"] for file in layout["files"])]
    return names


# ---------------------------------------------------------------------- versions of an index


class VersionFeed:
    """Follows an index for one query."""

    def __init__(
        self, spark: SparkSession, index: IndexDirectory, checkpoint: Checkpoint, check: Callable[[Manifest], None]
    ) -> None:
        self._index = index
        self._checkpoint = checkpoint
        self._check = check
        self._versions = QueryVersions(spark, checkpoint)
        self._refused: int | None = None
        self._known: PublishedVersion | None = None
        self._looking = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tidings-versions", daemon=True)
        self.problem: str | None = None  # why the newest version is not in use
        self.current = self._first()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Take a new version into use, if there is one; why one cannot be used is in `problem`."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        found = self._index.current()
        if found is None or found < self.current:
            self.problem = (
                f"the index {self._index.path} has gone back to version {found}: it is another, or an old copy"
            )
            return
        if found in (self.current, self._refused):
            return
        try:
            self._adopt(found)
        except TidingsError as error:
            self._refused, self.problem = found, f"version {found} is not in use: {error}"
            _log.error("stream: %s", self.problem)
            return
        self.problem = None
        self._versions.forget()

    # ------------------------------------------------------------------ versions

    def _first(self) -> int:
        """The version to begin with, and before it whatever a batch that is run again may need."""
        current = self._index.current()
        if current is None:
            raise PipelineError(f"index: {self._index.path} has no version yet; compile subscriptions into it")
        held = self._versions.current()
        if held > current:
            raise PipelineError(
                f"index: the query has matched version {held} of the subscriptions, and the current one in "
                f"{self._index.path} is {current}: the index is another, or an old copy; restore it, or start with a "
                "new checkpoint"
            )
        self._versions.bring_all()
        self._adopt(current)
        return current

    def _follow(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # the query goes on with what it has, and its status says why
                self.problem = f"cannot follow the subscriptions: {error}"
                _log.exception("stream: cannot follow the subscriptions")

    def _adopt(self, number: int) -> None:
        version = describe_version(self._index, number, self._known)
        self._check(version.manifest)
        folder = self._versions.folder
        at, base = version.base
        shards = [file.name for file in base.files]
        changed, overridden = [], None
        for name in shards:
            link(self._index.folder(at) / name, folder / name)
        if version.changes is not None:
            names = [file.name for file in version.changes.files]
            for name in names:
                link(self._index.folder(number) / name, folder / name)
            overridden = next(name for name in names if name.endswith(".arrow"))
            changed = [name for name in names if name != overridden]
        placed = None
        if version.placed is not None:
            placed = f"{version.placed[0]}.json"
            for name in (placed, *(file.name for file in version.placed[1].files)):
                link(self._index.folder(at) / name, folder / name)
        reads = list(dict.fromkeys(path[0] for path in version.manifest.reads))
        form: dict[str, Any] = {"shards": shards, "changes": changed, "overridden": overridden, "reads": reads}
        if placed is not None:
            form |= {"placed": placed, "domain": version.manifest.domain}
        self._versions.publish(number, form)
        self._known = version
        self.current = number


# ---------------------------------------------------------------------- versions of many domains


@dataclass
class SharedMember:
    """A domain in a shared stream: what its events are matched against."""

    domain: Domain
    rows: dict[int, str] = field(default_factory=dict)  # filters by number

    def to_text(self) -> str:
        return json.dumps({"domain": self.domain.to_dict(), "rows": sorted(self.rows.items())}) + "\n"

    @staticmethod
    def from_text(text: str) -> SharedMember:
        form = json.loads(text)
        return SharedMember(Domain.from_json(form["domain"]), dict(form["rows"]))


class SharedVersions:
    """Publishes versions for one query, which runs in the same process."""

    problem: str | None = None  # none is ever refused

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._versions = QueryVersions(spark, checkpoint)
        self._files: dict[str, str] = {}  # by the key of a domain, in the current version
        self.current = self._last()
        self._versions.bring_all()

    @property
    def folder(self) -> Path:
        return self._versions.folder

    def publish(self, members: Mapping[str, SharedMember], changed: set[str]) -> int:
        """Have these domains from the next batch on; of those in `changed`, and of new ones, files are written."""
        files = {key: self._files[key] for key in members.keys() & self._files.keys() if key not in changed}
        written = []
        for key in members.keys() - files.keys():
            text = members[key].to_text()
            files[key] = f"member-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
            path = self.folder / files[key]
            if not path.exists():
                beside = path.with_name(f".{path.name}.{os.getpid()}")
                beside.write_text(text)
                beside.replace(path)
                written.append(path)
        for path in written:
            sync_file(path)
        number = self.current + 1
        if written:
            sync_directory(self.folder)
        self._versions.publish(number, {"members": dict(sorted(files.items()))})
        self._files, self.current = files, number
        self._versions.forget()
        return number

    def covers(self, revision: int) -> None:
        """Note that the current version has the catalogue up to a revision."""
        write_covers(self.folder, Covers(self.current, revision))

    def close_gate(self) -> None:
        forget_covers(self.folder)

    def look(self) -> None:
        """Nothing to look for: versions are published here."""

    def _last(self) -> int:
        """The last version that there is; whatever a batch may have been pinned to has to be among them."""
        numbers = self._versions.numbers()
        last = numbers[-1] if numbers else 0
        pinned = [self._checkpoint.version_of(batch) for batch in self._checkpoint.unfinished()]
        for version in pinned:
            if version is None:
                continue
            try:
                lost = [name for name in files_of(self._versions.path(version)) if not (self.folder / name).exists()]
            except (OSError, ValueError, KeyError):
                lost = [f"{version}.json"]
            if lost:
                raise CheckpointError(
                    f"checkpoint: {self.folder / lost[0]} is missing or damaged, which the last batch needs; restore "
                    "a copy of the whole directory, or recover: go on with a new checkpoint"
                )
        return max([last, *(version for version in pinned if version is not None)])
