"""The directory of an index: immutable versions, and a file that names the current one.

    current                 the number of the current version, replaced in one step
    <version>/index.json    what was compiled: see `Manifest`
    <version>/rejects.parquet
    <version>/<layout>.json          the files of a layout, with their checksums
    <version>/tidings-….tidings      shard files

A version is written beside the others under a name that is not read, and renamed when complete.
Layouts may join a version later; their shard files come first and their list last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidings.model.domain import Domain
from tidings.pipeline.job_errors import PipelineError
from tidings.store.formats import INDEX as FORMAT
from tidings.store.formats import other_format

SUFFIX = ".tidings"  # of shard files
CHANGES = "changes"  # the layout of a version that holds only what differs from an earlier one

_READ = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What a version was compiled from."""

    fingerprint: str  # of the subscriptions, the domain and the software
    domain: dict[str, Any]
    id_type: str  # "string" or "bigint"
    subscriptions: int
    rejected: int
    elsewhere: int  # subscriptions to other domains
    reads: list[list[str]]  # the attributes that filters ask anything of
    plan: dict[str, Any] | None  # what placements would cost, and which was chosen; None where one was asked for
    format: int = FORMAT


@dataclass(frozen=True)
class ShardFile:
    """One file of a layout; an empty shard has none."""

    shard: int
    name: str
    subscriptions: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Layout:
    """The shard files that serve one placement."""

    placement: str
    files: tuple[ShardFile, ...]
    view: dict[str, Any] | None = None  # of a placement that routes

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class IndexDirectory:
    """Versions in a directory of the driver's file system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if "://" in str(path):
            raise PipelineError(
                f"index: {path} is no directory of the driver's own file system; give one that is: Spark brings the "
                "files to the executors"
            )

    def current(self) -> int | None:
        """The current version; None of a directory without any."""
        try:
            text = (self.path / "current").read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        if not text.strip().isdecimal():
            raise PipelineError(f"index: {self.path / 'current'} holds {text[:40]!r} and not the number of a version")
        return int(text)

    def folder(self, version: int) -> Path:
        return self.path / str(version)

    def latest(self) -> tuple[int, Manifest] | None:
        """The current version and what it was compiled from; None if there is none, or it was removed."""
        version = self.current()
        if version is None or not self.folder(version).exists():
            return None
        return version, self.manifest(version)

    def manifest(self, version: int) -> Manifest:
        form = self._read_json(self.folder(version) / "index.json")
        if form.get("format") != FORMAT:
            raise other_format("index", self.folder(version), form.get("format"), FORMAT)
        return Manifest(**form)

    def layout(self, version: int, name: str, *, check: bool = True) -> Layout | None:
        """A layout with all its files as they were written; None where the version has no such layout."""
        path = self.folder(version) / f"{name}.json"
        if not path.exists():
            return None
        form = self._read_json(path)
        layout = Layout(**form | {"files": tuple(ShardFile(**file) for file in form["files"])})
        for file in layout.files if check else ():
            self._check(self.folder(version) / file.name, file)
        return layout

    def _check(self, path: Path, file: ShardFile) -> None:
        try:
            found = checksum(path)
        except OSError as error:
            raise PipelineError(
                f"index: cannot read {path}: {error.strerror}; compile the subscriptions again"
            ) from error
        if found != file.sha256:
            raise PipelineError(
                f"index: {path} is damaged: its checksum is not the one that it was written with; remove the directory "
                f"{path.parent}, and compile the subscriptions again"
            )

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """A folder to write a version or a layout in; what is left in it at the end is removed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".staged-", dir=self.path))
        except OSError as error:
            raise self._unusable(error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, staged: Path, manifest: Manifest, layout_name: str, layout: Layout, *, after: int = 0) -> int:
        """Make what was staged the current version; returns its number, which is past `after`."""
        _write_json(staged / f"{layout_name}.json", asdict(layout))
        _write_json(staged / "index.json", asdict(manifest))
        there = (int(path.name) for path in self.path.iterdir() if path.name.isdecimal())
        version = max([after, self.current() or 0, *there])
        while True:
            version += 1
            try:
                os.rename(staged, self.folder(version))
                break
            except OSError:
                if not self.folder(version).exists():
                    raise
        # Another process may have published a later one meanwhile: the number never goes back.
        if version > (self.current() or 0):
            _write_atomically(self.path / "current", f"{version}\n")
        return version

    def add_layout(self, staged: Path, version: int, name: str, layout: Layout) -> None:
        """Add a layout to a version that is there already."""
        for file in layout.files:
            os.replace(staged / file.name, self.folder(version) / file.name)
        _write_json(self.folder(version) / f"{name}.json", asdict(layout))

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            form = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise PipelineError(f"index: cannot read {path}: {error}; compile the subscriptions again") from error
        if not isinstance(form, dict):
            raise PipelineError(f"index: {path} is damaged; compile the subscriptions again")
        return form

    def _unusable(self, error: OSError) -> PipelineError:
        return PipelineError(f"index: cannot use the directory {self.path}: {error.strerror}; give another")


@dataclass(frozen=True)
class PublishedVersion:
    """A version as it was published: compiled, or as changes to a compiled one."""

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


def describe_version(directory: IndexDirectory, number: int, known: PublishedVersion | None = None) -> PublishedVersion:
    """Reads a version and checks its files, but for those that it shares with `known`."""
    # Here, since a process that only reads the log would wait for the kernels that come with it.
    from tidings.systems.interface import REPLICATED

    manifest = directory.manifest(number)
    changes = directory.layout(number, CHANGES)
    said = {} if changes is None else changes.view or {}
    at, name = int(said.get("base", number)), said.get("placed")
    if known is not None and known.base[0] == at:
        base = known.base
        placed = known.placed if known.placed is not None and known.placed[0] == name else None
    else:
        layout = directory.layout(at, REPLICATED)
        if layout is None:
            raise PipelineError(
                f"index: version {at} in {directory.path} was compiled for another placement; a stream needs it "
                f"compiled with placement='{REPLICATED}'"
            )
        base, placed = (at, layout), None
    if name is not None and placed is None:
        # Gone where a later version has another View: all subscriptions are in the base's own files as well.
        found = directory.layout(at, name)
        placed = None if found is None else (name, found)
    return PublishedVersion(number, manifest, base, changes, placed)


def checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_READ):
            digest.update(data)
    return digest.hexdigest()


def _write_json(path: Path, form: dict[str, Any]) -> None:
    _write_atomically(path, json.dumps(form, indent=1) + "\n")


def _write_atomically(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
