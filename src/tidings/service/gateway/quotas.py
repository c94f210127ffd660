"""What each tenant may have: the limits, their defaults, and the TOML file that an operator changes them with.

    [service]
    max_connections = 8192

    [default]                    # of every tenant
    streams = 200
    uploading_bytes = "64mb"

    [tenants.acme]               # of this one
    domains = 5000

What is not in the file keeps its default. `tenant_use` counts what tenants have, and refuses what is beyond.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tidings.errors import TidingsError, did_you_mean
from tidings.service.data.data_directory import NAME

_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,12}) *([a-z]*)")


class QuotaError(TidingsError):
    """A file of quotas that cannot be read."""


@dataclass(frozen=True)
class Quota:
    """What one tenant may have at a time."""

    domains: int = 1_000
    subscriptions: int = 200_000
    filter_cost: int = 20_000_000  # of all its subscriptions: see `tidings.filter.cost`
    connections: int = 2_000  # on which it has sent a request
    streams: int = 1_000  # of Server-Sent Events
    uploading_bytes: int = 32 << 20  # of bodies that are being read, decompressed, or appended
    waiting_bytes: int = 1 << 30  # published, and not matched yet
    backtests: int = 4  # under way
    webhooks_at_once: int = 64  # attempts under way
    held_log_bytes: int = 4 << 30  # of the log, kept for subscribers that do not fetch


@dataclass(frozen=True)
class ServiceLimits:
    """What a gateway takes of all tenants, and of those that have not said yet who they are."""

    max_connections: int = 4_096
    max_connections_per_address: int = 1_024  # of another machine; programs of this one share an address
    max_bodies_bytes: int = 96 << 20  # of all requests that are being read or appended, beyond each tenant's own tenth
    max_head_bytes: int = 32 << 10  # of a request's line and headers
    max_pipelined: int = 16  # requests that wait on one connection for an earlier one
    head_seconds: float = 10.0  # that a request's line and headers may take
    body_seconds: float = 20.0  # that a body may take, and again while it comes at the rate below
    write_seconds: float = 30.0  # in which a client has to read some of what it is sent, at the rate below
    min_bytes_per_second: int = 4 << 10


@dataclass(frozen=True)
class Quotas:
    """The limits of every tenant."""

    default: Quota = field(default_factory=Quota)
    tenants: Mapping[str, Quota] = field(default_factory=dict)
    service: ServiceLimits = field(default_factory=ServiceLimits)

    def of(self, tenant: str) -> Quota:
        return self.tenants.get(tenant, self.default)


_Record = TypeVar("_Record", Quota, ServiceLimits)


def read_quotas(path: Path) -> Quotas:
    """The quotas in a file; raises QuotaError with what is wrong and where."""
    try:
        written = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise QuotaError(f"quotas: {path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise QuotaError(f"quotas: {path} is not TOML: {error}") from None
    known = ("service", "default", "tenants")
    for name in written:
        if name not in known:
            raise QuotaError(f"quotas: {path} has no place for [{name}]; {did_you_mean(name, known)}")
    default = _changed(Quota(), written.get("default", {}), f"{path}, [default]")
    tenants = {}
    for name, table in _table(written.get("tenants", {}), f"{path}, [tenants]").items():
        if not NAME.fullmatch(name):
            raise QuotaError(f"quotas: {path}: {name[:80]!r} cannot be the name of a tenant")
        tenants[name] = _changed(default, table, f"{path}, [tenants.{name}]")
    return Quotas(default, tenants, _changed(ServiceLimits(), written.get("service", {}), f"{path}, [service]"))


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise QuotaError(f"quotas: {where} is a table, not {value!r}")
    return value


def _changed(before: _Record, table: object, where: str) -> _Record:
    changes: dict[str, Any] = {}
    kinds = {one.name: type(getattr(before, one.name)) for one in dataclasses.fields(before)}
    for name, value in _table(table, where).items():
        if name not in kinds:
            raise QuotaError(f"quotas: {where} has no '{name}'; {did_you_mean(name, kinds)}")
        changes[name] = _number(value, kinds[name], name, where)
    return dataclasses.replace(before, **changes)


def _number(value: object, kind: type, name: str, where: str) -> int | float:
    size = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) and "bytes" in name else None
    if size and size[2] in _BYTES:
        value = int(size[1]) * _BYTES[size[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or (kind is int and value % 1):
        wanted = 'a number of bytes, or a size such as "64mb"' if "bytes" in name else "a number that is not negative"
        raise QuotaError(f"quotas: {where}: {name} is {wanted}, not {value!r}")
    return int(value) if kind is int else float(value)
