"""The names of a service's files, all in one directory, and which process writes each.

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
    driver.json                      how the driver does, replaced every second                driver
    runs/<pid>-…/                    temporary files of a driver and its Spark                 driver

A key is "<tenant>.<domain>": it names a domain in the log too. Neither part can hold a dot.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.errors import TidingsError
from tidings.service.data.data_format import check_format, write_format
from tidings.service.data.private_files import RUNS

DEFAULT_DATA = "tidings-data"
DEFAULT_TENANT = "default"
CATALOGUE = "TIDINGS_CATALOGUE"  # in the environment: a URL, whose password is not to be seen among the processes
LOG = "TIDINGS_LOG"  # likewise
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class DataDirectoryError(TidingsError):
    """A data directory that cannot be used, or a name that cannot be a file's."""


def domain_key(tenant: str, domain: str) -> str:
    """What a tenant's domain is called in the log and on the disk."""
    for what, name in (("tenant", tenant), ("domain", domain)):
        if not NAME.fullmatch(name):
            raise DataDirectoryError(
                f"{what}: {name[:80]!r} cannot be a name; use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or "
                "a digit"
            )
    return f"{tenant}.{domain}"


def parts_of_key(key: str) -> tuple[str, str]:
    """The tenant and the domain that a key names."""
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
    """Where everything of a service lies. Making one touches nothing on the disk; `make` does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def make(self) -> None:
        """Have the directory and its folders; others than its owner cannot look inside.

        Raises where the directory is of another format, or of something else, and changes nothing there.
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
                f"data directory: cannot make {error.filename or self.path}: {error.strerror}; give another, or make "
                "it writable"
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
        """Of a service whose catalogue is not in PostgreSQL."""
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
        """Where the driver answers a job."""
        name = str(job)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
            raise DataDirectoryError(f"job: {name[:80]!r} cannot be the name of one")
        return self.jobs / f"{name}.json"

    def write_token(self, secret: str) -> None:
        """Keep the first token where its owner alone can read it. One that is there stays."""
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
        """What the driver last said of itself; None before it has said anything."""
        status: Any = read_json(self.driver_status)
        if status is not None and not isinstance(status, dict):
            raise DataDirectoryError(f"{self.driver_status} holds no object; remove it, and the driver makes it again")
        return status


def read_json(path: Path) -> dict[str, Any] | None:
    """A file that its writer replaces in one step, so that it is there whole or not at all."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataDirectoryError(f"{path} holds no JSON: {error}; remove it, and its writer makes it again") from error
    return found


def replace_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write JSON in one step; `durable` has it on the disk before this returns."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            file.write("\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    if durable and os.name != "nt":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
