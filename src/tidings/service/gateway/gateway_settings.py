"""What an operator may choose of a gateway: settings, what the log keeps, and what each tenant may have.

Quotas come from a TOML file; what is not in it keeps its default:

    [service]
    max_connections = 8192

    [default]                    # of every tenant
    streams = 200
    uploading_bytes = "64mb"

    [tenants.acme]               # of this one
    domains = 5000

`tenant_use` counts what tenants have, and refuses what exceeds a quota.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tidings.errors import TidingsError, did_you_mean
from tidings.model.event_json import MAX_BATCH_BYTES, MAX_EVENT_BYTES
from tidings.service.data.data_directory import DEFAULT_TENANT, NAME

LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))
FOREVER = "forever"
_LIMIT = re.compile(r"([0-9]{1,9}) *([a-z]+)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SIZES = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_BYTES = {"": 1, "b": 1, **_SIZES}
_SIZE = re.compile(r"([0-9]{1,12}) *([a-z]*)")


class RetentionError(TidingsError):
    """A retention limit that cannot be read."""


@dataclass(frozen=True)
class Limits:
    """What the operator wants the log to keep; with neither limit, everything."""

    max_age: dt.timedelta | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class HeldLimits:
    """How long the log is kept beyond that for those who need it; each tenant's quota limits how much."""

    max_age: dt.timedelta = dt.timedelta(days=30)
    grace_seconds: float = 3600.0  # after the gateway was started, or a stream last came further


HELD_BY_DEFAULT = HeldLimits()
KEPT_BY_DEFAULT = Limits(max_age=dt.timedelta(days=7))


def read_limits(texts: Iterable[str]) -> Limits:
    """Reads limits such as 7d, 12h, 50gb or forever; of several the strictest counts.

    >>> read_limits(["7d", "50gb"])
    Limits(max_age=datetime.timedelta(days=7), max_bytes=53687091200)
    """
    ages: list[dt.timedelta] = []
    sizes: list[int] = []
    for text in texts:
        if text.strip().lower() == FOREVER:
            continue
        found = _LIMIT.fullmatch(text.strip().lower())
        if found and found[2] in _SECONDS:
            ages.append(dt.timedelta(seconds=int(found[1]) * _SECONDS[found[2]]))
        elif found and found[2] in _SIZES:
            sizes.append(int(found[1]) * _SIZES[found[2]])
        else:
            raise RetentionError(
                f"retain: {text[:40]!r} is no limit; give an age such as 12h or 7d, a size such as 50gb, or {FOREVER}"
            )
    return Limits(min(ages, default=None), min(sizes, default=None))


class QuotaError(TidingsError):
    """A file of quotas that cannot be read."""


@dataclass(frozen=True)
class Quota:
    """What one tenant may have at a time."""

    domains: int = 1_000
    placements: int = 4  # domains with a placement of their own, and so with their own stream
    subscriptions: int = 200_000
    filter_cost: int = 20_000_000  # of all its subscriptions: see `tidings.filter.cost`
    connections: int = 2_000  # on which it has sent a request
    streams: int = 1_000  # of Server-Sent Events
    uploading_bytes: int = 32 << 20  # of bodies that are being read, decompressed, or appended
    waiting_bytes: int = 1 << 30  # published, and not matched yet
    shared_waiting_bytes: int = 16 << 20  # of these, in the stream that small domains share
    backtests: int = 4  # under way
    webhooks_at_once: int = 64  # attempts under way
    held_log_bytes: int = 4 << 30  # of the log, kept for subscribers that do not fetch


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of all tenants together, and of senders that have not given a token yet."""

    max_connections: int = 4_096
    max_connections_per_address: int = 1_024  # of another machine; programs of this one share an address
    max_bodies_bytes: int = 96 << 20  # of all requests that are being read or appended, beyond each tenant's own tenth
    max_held_log_bytes: int = 32 << 30  # of all tenants' events, kept because somebody needs some of them
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
    """Reads the quotas in a file; raises QuotaError with what is wrong and where."""
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


class BodyLimits(NamedTuple):
    """The limits of one request."""

    event_bytes: int
    batch_bytes: int  # decompressed
    events: int


@dataclass(frozen=True)
class WebhookSettings:
    """How webhooks are delivered."""

    timeout_seconds: float = 15.0  # of one attempt, all of it
    max_answer_bytes: int = 64 << 10  # that are read of a response; only its status matters
    at_once: int = 128  # attempts under way; a tenant has at most half of them, and an endpoint half of that
    turn_seconds: float = 1.0  # after which the next subscription has its turn
    lookup_seconds: float = 5.0  # of a host's name
    # Pauses after the first, second, … failure, each with jitter; after the last the notification is a dead letter.
    backoff_seconds: tuple[float, ...] = (5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600)
    jitter: float = 0.2  # of each pause, up or down
    max_retry_after_seconds: float = 24 * 3600.0  # that a receiver may request
    suspended_after: int = 5  # failures of one notification, after which the endpoint is only probed
    probe_seconds: float = 3600.0  # between attempts then, at least
    overlap_seconds: float = 24 * 3600.0  # during which the previous secret signs too
    stumbled_seconds: float = 1.0  # after which a turn that a store has cut short is repeated


@dataclass(frozen=True)
class Settings:
    """A gateway's settings. The defaults are those of a laptop."""

    hosts: frozenset[str] = LOOPBACK_HOSTS  # names that requests may be addressed to, without ports
    dev_webhooks: bool = False  # webhooks may go to loopback, by http too
    catalogue: str | None = None  # a PostgreSQL URL; None: a file in the data directory
    log: str | None = None  # the URL of a topic of Kafka; None: files in the data directory
    operator: str = DEFAULT_TENANT  # the tenant whose tokens may read /metrics, which covers all tenants

    max_event_bytes: int = MAX_EVENT_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES
    max_batch_events: int = 100_000  # in one request
    quotas: Quotas = field(default_factory=Quotas)
    max_lag_events: int = 2_000_000  # of a domain, published and not yet matched
    threaded_bytes: int = 16 << 10  # a larger body is read in a thread, so that others need not wait for it

    max_answer_bytes: int = 8 << 20  # of the events in one response, exceeded by one event at most
    keep_alive_seconds: float = 15.0  # of a stream on which nothing happens
    poll_seconds: float = 0.02  # between polls of mailboxes that somebody waits for
    # What a stream sends before its client has to acknowledge some of it.
    stream_window_notifications: int = 1_000
    stream_window_bytes: int = 4 << 20
    stream_write_seconds: float = 30.0  # after which a client that reads nothing is disconnected

    backtest_wait_seconds: float = 30.0
    sweep_seconds: float = 1.0
    replay_pause_seconds: float = 30.0  # before the driver tries a history again that it could not replay
    retain: Limits = KEPT_BY_DEFAULT  # beyond these limits the log keeps only what is needed
    held: HeldLimits = HELD_BY_DEFAULT  # beyond these limits what is needed is given up
    retain_seconds: float = 60.0  # between removals
    job_kept_seconds: float = 24 * 3600.0
    token_cache_seconds: float = 5.0  # for which a revoked token still works
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)

    @property
    def body_limits(self) -> BodyLimits:
        return BodyLimits(self.max_event_bytes, self.max_batch_bytes, self.max_batch_events)
