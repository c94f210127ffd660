"""What an operator may choose of a gateway, and the bounds that keep it standing."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidings.model.event_json import MAX_BATCH_BYTES, MAX_EVENT_BYTES
from tidings.service.data.data_directory import DEFAULT_TENANT
from tidings.service.gateway.json_bodies import BodyLimits
from tidings.service.gateway.quotas import Quotas
from tidings.service.gateway.retention_limits import HELD_BY_DEFAULT, KEPT_BY_DEFAULT, HeldLimits, Limits

LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True)
class WebhookSettings:
    """How webhooks are delivered."""

    timeout_seconds: float = 15.0  # of one attempt, all of it
    max_answer_bytes: int = 64 << 10  # that are read of an answer; only its status matters
    at_once: int = 128  # attempts under way; a tenant has at most half of them, and an endpoint half of that
    turn_seconds: float = 1.0  # after which one who delivers lets others have their turn
    lookup_seconds: float = 5.0  # of a host's name
    # Pauses after the first, second, … failure, each with jitter; after the last the notification is a dead letter.
    backoff_seconds: tuple[float, ...] = (5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600)
    jitter: float = 0.2  # of each pause, up or down
    max_retry_after_seconds: float = 24 * 3600.0  # that a receiver may ask for
    suspended_after: int = 5  # failures of one notification, after which the endpoint is only probed
    probe_seconds: float = 3600.0  # between attempts then, at least
    overlap_seconds: float = 24 * 3600.0  # in which the secret before the present one signs too
    stumbled_seconds: float = 1.0  # after which a turn is given again that a store has cut short


@dataclass(frozen=True)
class Settings:
    """A gateway's settings. The defaults are those of a laptop."""

    hosts: frozenset[str] = LOOPBACK_HOSTS  # names that requests may be addressed to, without ports
    development: bool = False  # webhooks may go to loopback, by http too
    catalogue: str | None = None  # a PostgreSQL URL; None: a file in the data directory
    log: str | None = None  # the URL of a topic of Kafka; None: files in the data directory
    operator: str = DEFAULT_TENANT  # the tenant whose tokens may read /metrics, which tells of all tenants

    max_event_bytes: int = MAX_EVENT_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES
    max_batch_events: int = 100_000  # in one request
    quotas: Quotas = field(default_factory=Quotas)
    max_lag_events: int = 2_000_000  # of a domain, published and not yet matched
    threaded_bytes: int = 16 << 10  # a body past this is read in a thread, so that others need not wait for it

    max_answer_bytes: int = 8 << 20  # of the events in one answer, and one event more
    keep_alive_seconds: float = 15.0  # of a stream on which nothing happens
    poll_seconds: float = 0.02  # between looks at mailboxes that somebody waits for
    # What a stream sends before its client has to acknowledge some of it.
    stream_window_notifications: int = 1_000
    stream_window_bytes: int = 4 << 20
    stream_write_seconds: float = 30.0  # after which a client that reads nothing is disconnected

    backtest_wait_seconds: float = 30.0
    sweep_seconds: float = 1.0
    retain: Limits = KEPT_BY_DEFAULT  # of the log, beyond which only what is needed is kept
    held: HeldLimits = HELD_BY_DEFAULT  # of what is needed, beyond which it is given up
    retain_seconds: float = 60.0  # between looks at what can be removed
    job_kept_seconds: float = 24 * 3600.0
    token_cache_seconds: float = 5.0  # a token that was revoked works for so long
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)

    @property
    def body_limits(self) -> BodyLimits:
        return BodyLimits(self.max_event_bytes, self.max_batch_bytes, self.max_batch_events)
