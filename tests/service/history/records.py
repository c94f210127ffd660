"""What publishers, subscribers and whoever breaks things write down, one JSON object a line.

Times are seconds of one monotonic clock, which all processes of a machine share. A request has the time before it
was `sent` and the time after it was `answered` (None where no answer came); what happened lies in between.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Outcome: TypeAlias = Literal["acked", "refused", "unknown"]


@dataclass(frozen=True)
class Publish:
    """One attempt to publish one event. A publisher sends `sequence` + 1 only when it is done with `sequence`."""

    publisher: str
    sequence: int
    tenant: str
    domain: str
    source: str
    id: str
    event: dict[str, Any]  # its data
    sent: float
    answered: float | None
    outcome: Outcome
    position: int | None = None
    reason: str = ""  # of a refusal, in the service's words
    over: float | None = None  # when an attempt that was not acked had failed


@dataclass(frozen=True)
class Unserved:
    """A request other than publishing that was not served: refused, failed, or not answered in time."""

    tenant: str
    what: str  # pull, ack, subscribe, …
    sent: float
    over: float
    reason: str


@dataclass(frozen=True)
class Change:
    """A subscription created, changed, paused, resumed, deleted, or seen to be expired, disabled or failed."""

    action: Literal["create", "change", "pause", "resume", "delete", "expire", "disable", "fail"]
    subscription: str
    tenant: str
    domain: str
    sent: float
    answered: float | None
    outcome: Outcome
    filter: str | None = None  # of create and change
    predicate: list[Any] | None = None
    filter_from: int | None = None  # what was answered: the position from which on the filter holds
    replay_from: int | None = None  # of create: history from here on was asked for
    since: float | None = None  # of create: history since this moment was asked for


@dataclass(frozen=True)
class Delivery:
    """A notification that reached a subscriber; `request` is the same for those of one answer, stream or post."""

    subscription: str
    tenant: str  # of the subscriber
    channel: Literal["pull", "sse", "auto", "webhook"]  # auto: a stream that acknowledges what its socket takes
    request: str
    asked: float
    received: float
    position: int
    source: str
    id: str
    event: dict[str, Any]


@dataclass(frozen=True)
class Opened:
    """A stream that acknowledges what its socket takes was opened; `request` is that of its deliveries."""

    subscription: str
    request: str
    asked: float


@dataclass(frozen=True)
class Ack:
    """Everything up to a position was acknowledged."""

    subscription: str
    position: int
    sent: float
    answered: float | None
    outcome: Outcome


@dataclass(frozen=True)
class Dead:
    """A dead letter, as the service lists it."""

    subscription: str
    position: int
    reason: str


@dataclass(frozen=True)
class DeadFor:
    """Dead letters are expected whose reasons begin so, and no others; without this record, all are."""

    reasons: list[str]


@dataclass(frozen=True)
class Logged:
    """What the log has at a position, read at the end; `intact` unless a checksum says otherwise."""

    position: int
    tenant: str
    domain: str
    source: str
    id: str
    event: dict[str, Any]
    intact: bool = True


@dataclass(frozen=True)
class LogEnds:
    """The log, read at the end, has the positions from `start` up to but without `end`."""

    start: int
    end: int
    retained: bool = False  # by limits, so that what is before `start` may be gone


@dataclass(frozen=True)
class Fault:
    """Something was broken, and whole again (or left alone) from `over` on; recovery is due within a bound."""

    name: str
    began: float
    over: float
    bound_seconds: float
    channel: str | None = None  # that it struck: what comes by another is no recovery
    tenant: str | None = None  # whose deliveries count; None: everybody's
    domain: str | None = None


@dataclass(frozen=True)
class ClockBehind:
    """The service's clock was set back meanwhile: what was appended then counts as late as what follows it."""

    began: float
    ended: float


@dataclass(frozen=True)
class Phase:
    """While a tenant is alone, or beside others that do whatever they may, with nothing broken."""

    name: Literal["alone", "beside"]
    tenant: str
    began: float
    ended: float


@dataclass(frozen=True)
class Sample:
    """How large something was: a process's memory in bytes, a queue in items."""

    what: str
    size: float
    at: float


@dataclass(frozen=True)
class Limit:
    """How large it may be."""

    what: str
    largest: float


Record: TypeAlias = (
    Publish | Unserved | Change | Delivery | Opened | Ack | Dead | DeadFor | Logged | LogEnds | Fault | ClockBehind
    | Phase | Sample | Limit
)  # fmt: skip

_KINDS: dict[str, type[Record]] = {
    kind.__name__: kind
    for kind in (
        Publish,
        Unserved,
        Change,
        Delivery,
        Opened,
        Ack,
        Dead,
        DeadFor,
        Logged,
        LogEnds,
        Fault,
        ClockBehind,
        Phase,
        Sample,
        Limit,
    )
}


def to_line(record: Record) -> str:
    return json.dumps({"kind": type(record).__name__, **dataclasses.asdict(record)}, ensure_ascii=False)


def from_line(line: str) -> Record:
    fields = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of some files, those of one file in their order. A last line that was cut off is left out."""
    records: list[Record] = []
    for path in paths:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        records += map(from_line, lines)
        del rest  # a writer that was killed
    return records


@dataclass
class Writer:
    """Writes records as they happen; threads may share one."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, *records: Record) -> None:
        text = "".join(to_line(record) + "\n" for record in records)
        with self._lock:
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def now() -> float:
    return time.monotonic()
