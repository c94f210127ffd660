"""A gate before a stream's source: no event meets a set of subscriptions that is older than the event.

A request that creates a subscription returns once it is in the catalogue; it reaches the index a moment later. So
the source, planning a micro-batch, reads where the log ends FIRST and the domain's revision in the catalogue
AFTER it, and takes the events up to that end only with a version of the index that covers that revision: what
was answered before an event was appended is then in the version. While the index catches up, further ends and
revisions are noted. An event waits only for the revision of its own time, so that a catalogue that changes all
the time delays events and never stops them.

What a version covers is in a file of the index's directory, `covers`, and not in the version: many changes of the
catalogue, such as the position from which a filter is promised, change nothing in the index.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.pipeline.job_errors import PipelineError

if TYPE_CHECKING:
    from tidings.store.catalogue import Catalogue

ENDS_KEPT = 64
BUSY_SECONDS = 1.0  # that a look at the catalogue waits for its writer; then the gate stays closed a little longer


@dataclass(frozen=True)
class Gate:
    """Where a source finds what it has to wait for. Travels as text: the source runs in a process of its own."""

    catalogue: str  # a URL, or the path of a file
    tenant: str | None  # of the domain; None, as its name: all domains
    domain: str | None
    index: str  # the directory whose `covers` says how far it has come

    def to_option(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_option(text: str) -> Gate:
        return Gate(**json.loads(text))

    def revision(self) -> int | None:
        """Of the domain in the catalogue, or of all domains; None while that cannot be read, so that nothing passes."""
        # Here, since workers that only match would spend a good part of their start on it.
        from tidings.store.catalogue import CatalogueBusyError

        try:
            catalogue = _opened(self.catalogue)
            if self.tenant is None or self.domain is None:
                return catalogue.revision()
            return catalogue.revision(self.tenant, self.domain)
        except CatalogueBusyError:
            return None

    def covered(self) -> Covers:
        return read_covers(self.index)


@dataclass(frozen=True)
class Covers:
    """The catalogue up to this revision is in this version of the index, and in every later one."""

    version: int
    revision: int


def write_covers(index: str | os.PathLike[str], covers: Covers) -> None:
    """Writes how far an index has come, in one step. Not synced: what is lost is found again at the next start."""
    path = Path(index) / "covers"
    beside = path.with_name(f".covers.{os.getpid()}")
    beside.write_text(json.dumps(asdict(covers)) + "\n")
    beside.replace(path)


def forget_covers(index: str | os.PathLike[str]) -> None:
    """Closes the gate, until the index has been compared with the catalogue."""
    (Path(index) / "covers").unlink(missing_ok=True)


def read_covers(index: str | os.PathLike[str]) -> Covers:
    path = Path(index) / "covers"
    try:
        return Covers(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Covers(0, -1)
    except (OSError, ValueError, TypeError) as error:
        raise PipelineError(f"index: cannot read {path}: {error}; restart whatever keeps the index") from error


class Ends:
    """Where the log was seen to end, each time with the revision that was read after it. Both only grow."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, int]] = []  # end, revision

    def note(self, end: int, revision: int) -> None:
        if self._noted and self._noted[-1][1] >= revision:
            revision = self._noted.pop()[1]  # a later end that asks for no more
        self._noted.append((end, revision))
        if len(self._noted) > ENDS_KEPT:
            del self._noted[1::2]  # any may go: its events then wait for the next one's revision

    def covered(self, revision: int) -> int | None:
        """The last end whose events may meet what covers this revision; None if there is none."""
        passed = [end for end, needed in self._noted if needed <= revision]
        self._noted = [(end, needed) for end, needed in self._noted if needed > revision]
        return passed[-1] if passed else None


@cache
def _opened(catalogue: str) -> Catalogue:
    """Opened once in a process, which lives as long as its query."""
    from tidings.store.catalogue import Catalogue

    return Catalogue(catalogue, busy_seconds=BUSY_SECONDS)
