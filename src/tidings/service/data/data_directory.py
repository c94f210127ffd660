"""The files of a service, all in one directory: their names, their formats, and which process writes each.

    format.json                      the formats of the others; written first                 supervisor
    token                            the first token, readable by its owner alone             supervisor
    serve.lock/                      held by the one supervisor                                supervisor
    log/                             the events, or where in Kafka they are                    gateway
    catalogue.sqlite                 domains, subscriptions, tokens, jobs                      gateway
    deliveries.sqlite                cursors, attempts, dead letters                           gateway
    domains/<key>/index              the compiled subscriptions of a domain                    driver
    domains/<key>/query              the checkpoint of its stream                              driver
    domains/<key>/mailboxes.sqlite   what each subscription has waiting                        driver
    domains/<key>/aside.json         filters and events that broke its stream                  driver
    shared/query                     the checkpoint of the stream that small domains share     driver
    shared/progress.sqlite           how far that stream has come                              driver
    jobs/<id>.json                   answers to jobs of the catalogue; the gateway removes     driver
    driver.json                      the status of the driver, replaced every second           driver
    runs/<pid>-…/                    temporary files of a driver and its Spark                 driver

A key is "<tenant>.<domain>": it names a domain in the log too. Neither part can hold a dot.

format.json is the first file of a directory, and is read before any other is opened. A directory with other numbers is
left as it is, and so is one that has files but no format.json: it is of something else.

    format.json   {"made_by": "tidings 0.1.0", "data directory": 1, "log": 1, "catalogue": 2, …}
    aside.json    {"filters": {"12": {"from": 345, "reason": …}}, "events": {"350": …}}

aside.json has the filters and events that broke the stream of a domain. The driver finds them by trying parts of the
batch that fails, and writes them before the batch is run again, so that the next run leaves out the same. The gateway
reads them: a filter's subscription has failed from that position on, an event is a dead letter of its subscribers.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidings import __version__
from tidings.errors import TidingsError
from tidings.service.data.private_files import RUNS
from tidings.store import formats
from tidings.store.formats import FormatError
from tidings.store.log.log_files import sync_directory

DEFAULT_DATA = "tidings-data"
DEFAULT_TENANT = "default"
CATALOGUE = "TIDINGS_CATALOGUE"  # in the environment: a URL, whose password must not show in the list of processes
LOG = "TIDINGS_LOG"  # likewise
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
FORMAT_FILE = "format.json"
FORMATS = {
    "data directory": 1,
    "log": formats.LOG,
    "catalogue": formats.CATALOGUE,
    "deliveries": formats.DELIVERIES,
    "mailboxes": formats.MAILBOXES,
    "shared progress": formats.SHARED_PROGRESS,
    "index": formats.INDEX,
    "checkpoint": formats.CHECKPOINT,
}
_THIS = f"tidings {__version__}"


class DataDirectoryError(TidingsError):
    """A data directory that cannot be used, or a name that is not valid."""


def domain_key(tenant: str, domain: str) -> str:
    """Returns the name of a tenant's domain in the log and on the disk."""
    for what, name in (("tenant", tenant), ("domain", domain)):
        if not NAME.fullmatch(name):
            raise DataDirectoryError(
                f"{what}: {name[:80]!r} is not a valid name; use 1 to 63 of a-z, 0-9, _ and -, first a letter or digit"
            )
    return f"{tenant}.{domain}"


def parts_of_key(key: str) -> tuple[str, str]:
    """Returns the tenant and the domain of a key."""
    tenant, _, domain = key.partition(".")
    domain_key(tenant, domain)
    return tenant, domain


@dataclass(frozen=True)
class DomainFiles:
    """The files of one domain."""

    key: str
    folder: Path

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def query(self) -> Path:
        return self.folder / "query"

    @property
    def mailboxes(self) -> Path:
        return self.folder / "mailboxes.sqlite"

    @property
    def aside(self) -> Path:
        return self.folder / "aside.json"


@dataclass(frozen=True)
class SharedFiles:
    """The files of the stream that small domains share."""

    folder: Path

    @property
    def query(self) -> Path:
        return self.folder / "query"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.sqlite"


class DataDirectory:
    """The paths of all files of a service. Only `make` changes anything on the disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def make(self) -> None:
        """Make the directory and its folders, which only their owner can read.

        Raises FormatError if the directory is of another format, or of something else, and changes nothing there.
        """
        is_there = check_format(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not is_there:
                write_format(self.path)
            for folder in (self.log, self.domains, self.jobs):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory: cannot make {error.filename or self.path}: {error.strerror}; give another "
                "directory, or make it writable"
            ) from error

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def lock(self) -> Path:
        return self.path / "serve.lock"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def catalogue(self) -> Path:
        """The file of a catalogue that is not in PostgreSQL."""
        return self.path / "catalogue.sqlite"

    @property
    def deliveries(self) -> Path:
        return self.path / "deliveries.sqlite"

    @property
    def domains(self) -> Path:
        return self.path / "domains"

    @property
    def shared(self) -> SharedFiles:
        return SharedFiles(self.path / "shared")

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def driver_status(self) -> Path:
        return self.path / "driver.json"

    @property
    def runs(self) -> Path:
        return self.path / RUNS

    def domain(self, tenant: str, name: str) -> DomainFiles:
        key = domain_key(tenant, name)
        return DomainFiles(key, self.domains / key)

    def answer(self, job: int | str) -> Path:
        """The file that the driver writes the answer to a job to."""
        name = str(job)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
            raise DataDirectoryError(f"job: {name[:80]!r} is not a valid id")
        return self.jobs / f"{name}.json"

    def write_token(self, secret: str) -> None:
        """Write the first token to a file that only its owner can read; raises if there is one."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(self.token, flags, 0o600), "w") as file:
            file.write(f"{secret}\n")
            file.flush()
            os.fsync(file.fileno())

    def read_token(self) -> str | None:
        try:
            return self.token.read_text().strip()
        except FileNotFoundError:
            return None

    def read_driver_status(self) -> dict[str, Any] | None:
        """Returns the last status of the driver; None before it has written any."""
        status: Any = read_json(self.driver_status)
        if status is None:
            return None
        if isinstance(status, dict) and isinstance(status.get("domains") or {}, dict):
            return status
        raise DataDirectoryError(f"{self.driver_status} is not a status; remove it, and the driver makes it again")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a file that its writer replaces in one step; None if there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataDirectoryError(f"{path} is not JSON: {error}; remove it, and its writer makes it again") from error
    return found


def replace_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write JSON in one step; with `durable`, it is on the disk when this returns."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            file.write("\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)


# ---------------------------------------------------------------------- format.json


def check_format(directory: Path) -> bool:
    """Whether a directory has the formats of this version; False if it is empty or missing. Raises otherwise."""
    path = directory / FORMAT_FILE
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        if there := _names(directory):
            raise FormatError(
                f"data directory: {directory} has files and no {FORMAT_FILE} ({', '.join(there[:3])}"
                f"{', …' if len(there) > 3 else ''}): it is of something else, or of an early version of Tidings; give "
                "an empty or new directory: this one was left as it is"
            ) from None
        return False
    except (OSError, ValueError) as error:
        raise FormatError(
            f"data directory: cannot read {path}: {error}; restore it from a backup: nothing was changed"
        ) from error
    known = found if isinstance(found, dict) else {}
    other = [
        f"{what} {known.get(what)} and not {number}" for what, number in FORMATS.items() if known.get(what) != number
    ]
    if other:
        raise FormatError(
            f"data directory: {directory} is of another format than {_THIS} has ({', '.join(other)}); start it with "
            f"{known.get('made_by', 'the version that made it')}, or give another directory: this one was left as it is"
        )
    return True


def write_format(directory: Path) -> None:
    """Write the formats of a new directory, durably. Two processes that do so at once write the same."""
    replace_json(directory / FORMAT_FILE, {"made_by": _THIS, **FORMATS}, durable=True)


def _names(directory: Path) -> list[str]:
    """Returns the names of files in a directory that are not its file system's own."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith(".") and name != "lost+found")
    except FileNotFoundError:
        return []


# ---------------------------------------------------------------------- aside.json


@dataclass(frozen=True)
class FailedFilter:
    """A filter that breaks matching."""

    number: int
    position: int  # from which it is left out
    reason: str


@dataclass(frozen=True)
class SetAside:
    """What a domain's stream leaves out: filters and events that broke it."""

    filters: dict[int, FailedFilter] = field(default_factory=dict)  # by number
    events: dict[int, str] = field(default_factory=dict)  # reasons by position

    @staticmethod
    def read(path: Path) -> SetAside:
        try:
            form = json.loads(path.read_bytes())
        except FileNotFoundError:
            return SetAside()
        except ValueError as error:
            raise DataDirectoryError(f"{path} is not JSON: {error}; restore it from a backup") from error
        failed = (FailedFilter(int(text), one["from"], one["reason"]) for text, one in form["filters"].items())
        events = {int(position): reason for position, reason in form["events"].items()}
        return SetAside({one.number: one for one in failed}, events)

    def write(self, path: Path) -> None:
        filters = {str(one.number): {"from": one.position, "reason": one.reason} for one in self.filters.values()}
        events = {str(position): reason for position, reason in self.events.items()}
        replace_json(path, {"filters": filters, "events": events}, durable=True)

    def with_culprits(self, filters: Mapping[int, str], events: Mapping[int, str], start: int) -> SetAside:
        """Returns these and more, by their reasons; filters from the start of the batch that they broke."""
        new = {number: FailedFilter(number, start, reason) for number, reason in filters.items()}
        return SetAside({**new, **self.filters}, {**events, **self.events})

    def __bool__(self) -> bool:
        return bool(self.filters or self.events)
