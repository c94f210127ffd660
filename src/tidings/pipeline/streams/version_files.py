"""How versions of the subscriptions reach a running query.

Whoever keeps the subscriptions publishes versions in an index's directory, at any time and from any
process. The query's driver looks there, checks a new version, has its files where every worker finds
them, and only then names it as the current one, which the source pins to its next micro-batch. The
files are links of the query's own: a batch that is run again finds its version, whatever became of the index.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidings.errors import TidingsError
from tidings.model.domain import Domain
from tidings.pipeline.build.index_directory import IndexDirectory, Layout, Manifest
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.shipped_files import withdraw
from tidings.pipeline.streams.checkpoint import Checkpoint, link, write_durably
from tidings.pipeline.streams.versioned_tasks import shipped_name

CHANGES = "changes"  # the layout of a version that says only what differs from an earlier one
LOOK_SECONDS = 0.05

_log = logging.getLogger("tidings.pipeline")


@dataclass(frozen=True)
class Described:
    """A version as it was published."""

    number: int
    manifest: Manifest
    base: tuple[int, Layout]  # the compiled version that it is, or differs from
    changes: Layout | None
    placed: tuple[str, Layout] | None = None  # the layout of the base that events are routed by, and its name

    @property
    def subscriptions(self) -> int:
        return self.manifest.subscriptions

    @property
    def domain(self) -> Domain:
        return Domain.from_json(self.manifest.domain)


def describe_version(directory: IndexDirectory, number: int, known: Described | None = None) -> Described:
    """A version, its files checked; those that it shares with `known` were before."""
    manifest = directory.manifest(number)
    changes = directory.layout(number, CHANGES)
    said = {} if changes is None else changes.view or {}
    at, name = int(said.get("base", number)), said.get("placed")
    if known is not None and known.base[0] == at:
        base = known.base
        placed = known.placed if known.placed is not None and known.placed[0] == name else None
    else:
        layout = directory.layout(at, "replicated")
        if layout is None:
            raise PipelineError(
                f"index: version {at} in {directory.path} was compiled for another placement; a stream needs it "
                "compiled with placement='replicated'"
            )
        base, placed = (at, layout), None
    if name is not None and placed is None:
        # Gone where a later version has another View: all subscriptions are in the base's own files as well.
        found = directory.layout(at, name)
        placed = None if found is None else (name, found)
    return Described(number, manifest, base, changes, placed)


class VersionFeed:
    """Follows an index for one query."""

    def __init__(
        self, spark: SparkSession, index: IndexDirectory, checkpoint: Checkpoint, check: Callable[[Manifest], None]
    ) -> None:
        self._spark = spark
        self._index = index
        self._checkpoint = checkpoint
        self._check = check
        self._ships = not (spark.sparkContext.master or "").startswith("local[")
        self._shipped: set[str] = set()
        self._refused: int | None = None
        self._known: Described | None = None
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
        """Take a new version into use, if there is one; one that cannot be used is told of, and left."""
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
        self._forget()

    # ------------------------------------------------------------------ versions

    def _first(self) -> int:
        """The version to begin with, and before it whatever a batch that is run again may need."""
        current = self._index.current()
        if current is None:
            raise PipelineError(f"index: {self._index.path} has no version yet; compile subscriptions into it")
        try:
            held = int((self._checkpoint.versions / "current").read_text())
        except (FileNotFoundError, ValueError):
            held = 0
        if held > current:
            raise PipelineError(
                f"index: the query has matched version {held} of the subscriptions, and the current one in "
                f"{self._index.path} is {current}: the index is another, or an old copy; restore it, or start with a "
                "new checkpoint"
            )
        if self._ships:
            for path in self._checkpoint.versions.glob("*.json"):
                if path.stem.isdecimal():  # a version, and no layout
                    self._ship_described(path)
        self._adopt(current)
        return current

    def _follow(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # the query goes on with what it has, and its user is told
                self.problem = f"cannot follow the subscriptions: {error}"
                _log.exception("stream: cannot follow the subscriptions")

    def _adopt(self, number: int) -> None:
        version = describe_version(self._index, number, self._known)
        self._check(version.manifest)
        folder = self._checkpoint.versions
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
        write_durably(folder / f"{number}.json", json.dumps(form) + "\n")
        if self._ships:
            self._ship_described(folder / f"{number}.json")
        write_durably(folder / "current", f"{number}\n")
        self._known = version
        self.current = number

    def _ship_described(self, path: Path) -> None:
        """Have Spark bring a version to executors that do not see the driver's disk."""
        names = _files_of(path)
        own = path.with_name(shipped_name(self._checkpoint.query, path.name))
        link(path, own)
        for name in [*names, own.name]:
            if name not in self._shipped:
                self._spark.sparkContext.addFile(str(path.with_name(name)))
                self._shipped.add(name)

    def _forget(self) -> None:
        """Remove the versions that no batch can be run with any more, and the files that only they had."""
        oldest = self._checkpoint.oldest_needed()
        if oldest is None:
            return
        folder = self._checkpoint.versions
        needed = {"current"}
        for path in list(folder.glob("*.json")):
            if not path.stem.isdecimal():
                continue
            if int(path.stem) < oldest:
                path.unlink()
                continue
            needed |= {path.name, shipped_name(self._checkpoint.query, path.name), *_files_of(path)}
        gone = {name for name in os.listdir(folder) if name not in needed and not name.startswith(".")}
        if self._ships:
            shipped = gone & self._shipped
            if shipped and not withdraw(self._spark.sparkContext, shipped):
                gone -= shipped
            self._shipped -= gone
        for name in gone:
            (folder / name).unlink(missing_ok=True)


def _files_of(path: Path) -> list[str]:
    """The files that a version in a query's directory needs, beside its own."""
    form = json.loads(path.read_text())
    names = [*form["shards"], *form["changes"], *([form["overridden"]] if form["overridden"] else [])]
    if form.get("placed") is not None:
        layout = json.loads(path.with_name(form["placed"]).read_text())
        names += [form["placed"], *(file["name"] for file in layout["files"])]
    return names
