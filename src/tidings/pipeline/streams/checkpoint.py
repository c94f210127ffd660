"""A query's directory: Spark's checkpoint, and beside it what makes a query the same one after a restart.

tidings.json     which query this is: its source, subscriptions and sink
writer.sqlite    its lock is held by the process that runs the query
subscriptions/   the versions that it may have to match against: see `versions`
pins/<batch>     the version of each micro-batch, where the source's own offsets cannot carry it
offsets/, commits/, metadata, …   Spark's
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.pipeline.job_errors import CheckpointError, PipelineError
from tidings.store.formats import CHECKPOINT, other_format
from tidings.store.log.log_errors import LogBusyError, LogError
from tidings.store.log.log_files import WriterLock, sync_directory

IDENTITY = "tidings.json"
PINS_KEPT = 200  # Spark keeps 100 batches


@dataclass(frozen=True)
class QueryIdentity:
    """What a query is, in words that its user gave."""

    source: str
    subscriptions: str
    sink: str
    output: str


class Checkpoint:
    """A query's directory, in use by this process only."""

    def __init__(self, path: str | os.PathLike[str], identity: QueryIdentity, *, recover: bool = False) -> None:
        self.path = Path(path).absolute()
        self._check_format()
        if recover:
            self._put_aside()
        self._lock = self._taken()
        try:
            self.query, self.recovered = self._identified(identity, recover)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._lock.release()

    @property
    def versions(self) -> Path:
        return self.path / "subscriptions"

    @property
    def last_planned(self) -> int | None:
        """The last batch whose offsets Spark wrote down."""
        return _last(self.path / "offsets")

    @property
    def last_committed(self) -> int | None:
        """The last batch that Spark knows to be done."""
        return _last(self.path / "commits")

    def unfinished(self) -> range:
        """The batches that Spark runs again at a start: planned, and not known to be done."""
        planned, done = self.last_planned, self.last_committed
        return range(0) if planned is None else range(0 if done is None else done + 1, planned + 1)

    def version_of(self, batch: int) -> int | None:
        """The version of the subscriptions that a batch is pinned to; None where Spark has forgotten the batch."""
        try:
            return int((self.path / "pins" / str(batch)).read_text())
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise self._damaged(f"pins/{batch}") from error
        offset = self._offset(batch)
        version = offset.get("subscriptions") if isinstance(offset, dict) else None
        return version if isinstance(version, int) else None

    def _offset(self, batch: int) -> Any:
        """Where a batch ends, as its source has written it; None where Spark has forgotten the batch."""
        try:
            return json.loads((self.path / "offsets" / str(batch)).read_text().splitlines()[2])
        except FileNotFoundError:
            return None
        except (IndexError, ValueError) as error:
            raise self._damaged(f"offsets/{batch}") from error

    def check(self) -> None:
        """Refuse what Spark would stumble over: what it reads of its lists of offsets and commits, and its own name."""
        planned, done = self.last_planned, self.last_committed
        needed = {batch for batch in (planned, done) if batch is not None}
        if planned:
            needed.add(planned - 1)  # where the last one begins, which Spark reads even if that is done
        files = [(f"offsets/{batch}", 3) for batch in sorted(needed)]
        for name, lines in [*files, *([] if done is None else [(f"commits/{done}", 2)])]:
            try:
                written = (self.path / name).read_text().splitlines()
                is_whole = len(written) >= lines and re.fullmatch(r"v\d+", written[0]) is not None
                for line in written[1:]:
                    is_whole = is_whole and (line == "-" or json.loads(line) is not None)  # "-": no offset of a source
            except (OSError, ValueError) as error:
                raise self._damaged(name) from error
            if not is_whole:
                raise self._damaged(name)
        if planned is None and done is None and not (self.path / "metadata").exists():
            return
        try:
            json.loads((self.path / "metadata").read_text())
        except (OSError, ValueError) as error:
            raise self._damaged("metadata") from error

    def pin(self, batch: int, current: int) -> int:
        """The version of a batch: what it was given when it was first run, else the current one from now on."""
        pinned = self.version_of(batch)
        if pinned is None:
            pinned = current
            write_durably(self.path / "pins" / str(batch), f"{pinned}\n")
            (self.path / "pins" / str(batch - PINS_KEPT)).unlink(missing_ok=True)
        return pinned

    def oldest_needed(self) -> int | None:
        """The oldest version that a batch may still be run with: that of the last one that is done."""
        done = self.last_committed
        return None if done is None else self.version_of(done)

    # ------------------------------------------------------------------ opening

    def _check_format(self) -> None:
        """Refuse a directory of another version of Tidings before anything in it is touched, or put aside."""
        try:
            form = json.loads((self.path / IDENTITY).read_text())
        except (OSError, ValueError):
            return  # there is none, or it is damaged, which is said later
        if isinstance(form, dict) and form.get("format") != CHECKPOINT:
            raise other_format("checkpoint", self.path, form.get("format"), CHECKPOINT)

    def _put_aside(self) -> None:
        """Empty the directory, which itself stays: others may check whether it exists."""
        if not self.path.exists() or not any(self.path.iterdir()):
            return
        self._taken().release()
        when = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:4]}"
        aside = self.path.with_name(f"{self.path.name}.replaced-{when}")
        aside.mkdir()
        # What says whose it is goes last: without it, nothing would say whose the rest is if this is interrupted.
        for path in sorted(self.path.iterdir(), key=lambda path: path.name == IDENTITY):
            path.rename(aside / path.name)

    def _taken(self) -> WriterLock:
        try:
            for folder in (self.path, self.versions, self.path / "pins"):
                folder.mkdir(parents=True, exist_ok=True)
            return WriterLock(self.path)
        except OSError as error:
            reason: object = error.strerror
        except LogBusyError:
            raise PipelineError(
                f"checkpoint: {self.path} is in use: another process runs this query; stop it, or give another "
                "checkpoint"
            ) from None
        except LogError as error:
            reason = error
        raise PipelineError(f"checkpoint: cannot write to {self.path}: {reason}; give a directory that can be written")

    def _identified(self, identity: QueryIdentity, recover: bool) -> tuple[str, bool]:
        """Of the query in this directory, its name, and whether it goes on from where another was lost."""
        path = self.path / IDENTITY
        given = identity.__dict__
        try:
            form: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            if (self.path / "metadata").exists() or (self.path / "offsets").exists():
                raise PipelineError(
                    f"checkpoint: {self.path} is of a query that is none of Tidings'; give another directory"
                ) from None
            form = {"format": CHECKPOINT, "query": uuid.uuid4().hex, "recovered": recover, **given}
            write_durably(path, json.dumps(form, indent=1) + "\n")
        except ValueError as error:
            raise self._damaged(path.name) from error
        for what, value in given.items():
            if form.get(what) != value and self.last_planned is None:  # nothing was done as that query
                path.unlink()
                return self._identified(identity, recover)
            if form.get(what) != value:
                raise CheckpointError(
                    f"checkpoint: {self.path} is of another query, whose {what} is {form.get(what)} and not {value}; "
                    "give another checkpoint"
                )
        return str(form["query"]), bool(form["recovered"])

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint: {self.path / name} is damaged; restore a copy of the whole directory, or start "
            "again in another"
        )


@dataclass(frozen=True)
class UnfinishedBatch:
    """A batch of the log that is planned, and not known to be done: positions [start, end), and the version."""

    start: int
    end: int
    version: int


def unfinished_batch(path: Path) -> UnfinishedBatch | None:
    """Returns the batch that a query over the log runs first when it starts; None if there is none that can be read."""
    planned, done = _last(path / "offsets"), _last(path / "commits")
    if planned is None or done == planned:
        return None
    end = _log_offset(path, planned)
    before = _log_offset(path, planned - 1)
    if end is None:
        return None
    return UnfinishedBatch(0 if before is None else before["log"], end["log"], end["subscriptions"])


def _log_offset(path: Path, batch: int) -> dict[str, int] | None:
    """The offset of the log that a batch ends at; None if it cannot be read."""
    try:
        offset = json.loads((path / "offsets" / str(batch)).read_text().splitlines()[2])
        return {name: int(offset[name]) for name in ("log", "subscriptions")}
    except (OSError, IndexError, ValueError, KeyError, TypeError):
        return None


def _last(folder: Path) -> int | None:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=None)
    except FileNotFoundError:
        return None


def write_durably(path: Path, text: str) -> None:
    """Replace a file in one step, on the disk before this returns."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Have what was written to a file on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def link(source: Path, target: Path) -> None:
    """Have a file in a second place: a link where the file system can, else a copy."""
    if target.exists():
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:
        shutil.copyfile(source, beside)
    beside.replace(target)
