"""What the catalogue returns: plain records, one class for each kind of row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

DELIVERIES = ("pull", "sse", "webhook")
SELECTIONS = ("document", "nodes")
NOT_REPLAYED = "its history cannot be replayed"  # how a reason begins for which a subscription is disabled
STATES = ("pending", "active", "replaying", "suspended", "paused", "failed", "disabled", "expired")


@dataclass(frozen=True)
class DomainRow:
    """A domain of a tenant."""

    tenant: str
    name: str
    definition: str  # JSON of a model.Domain
    inferred: bool  # from the first events, and not confirmed yet
    created: int  # microseconds since 1970, as are all times here
    updated: int
    revision: int  # of the catalogue when this domain, or a filter of it, was last changed
    placement: str | None = None  # that its stream is to have; None: as the service is set

    @property
    def key(self) -> str:
        """Its name among the domains of all tenants: in the log, and of its directory."""
        return f"{self.tenant}.{self.name}"


@dataclass(frozen=True)
class FilterRow:
    """One text that a subscription's filter has, had or will have: valid for positions [valid_from, valid_to)."""

    number: int  # its id in the index and in the mailboxes; never used again
    subscription: str
    subscription_key: int
    tenant: str
    domain: str
    filter: str
    valid_from: int | None  # None: not active yet
    valid_to: int | None  # None: without end
    replay_from: int | None  # history from here up to valid_from is wanted too
    revision: int  # of the catalogue when this row was last changed
    failed_from: int | None = None  # the first position that it was left out of, as it breaks matching
    failed: str | None = None  # the reason

    def valid_at(self, position: int) -> bool:
        """Whether a match at this position is delivered."""
        return (
            self.valid_from is not None
            and self.valid_from <= position
            and (self.valid_to is None or position < self.valid_to)
        )

    def needed_from(self, position: int) -> bool:
        """Whether an event at this position or a later one can still concern this row."""
        if self.valid_to is None:
            return True
        return position < self.valid_to and self.valid_from is not None and self.valid_from < self.valid_to

    @property
    def deliver_from(self) -> int | None:
        """The first position whose matches are delivered: that of the history, if it was asked for."""
        if self.valid_from is None or self.replay_from is None:
            return self.valid_from
        return min(self.replay_from, self.valid_from)


@dataclass(frozen=True)
class NewSubscription:
    """What a subscriber asks for. Without an id, one is made."""

    tenant: str
    domain: str
    filter: str
    id: str | None = None
    delivery: str = "pull"
    url: str | None = None
    secret: str | None = field(default=None, repr=False)  # that webhooks are signed with
    select: str = "document"  # one of SELECTIONS
    labels: Mapping[str, str] = field(default_factory=dict)
    expires: int | None = None
    paused: bool = False
    replay_from: int | None = None  # a position: history from there on is wanted too
    cost: int = 0  # of the filter, for its tenant's quota


@dataclass(frozen=True)
class SubscriptionRow:
    """A subscription as it is now, with every filter that it has had."""

    key: int  # its number in the catalogue, which deliveries are kept by; never used again, even if the id is
    id: str
    tenant: str
    domain: str
    filter: str  # the text in force; while pending, the text that is about to be
    delivery: str  # one of DELIVERIES
    url: str | None
    secret: str | None = field(repr=False)
    old_secret: str | None = field(repr=False)  # signs too, until a time
    old_secret_until: int | None
    select: str  # one of SELECTIONS: whether events are delivered, or the nodes that the filter's paths select in them
    labels: dict[str, str]
    created: int
    updated: int
    expires: int | None  # when it is to end
    paused: bool
    disabled: str | None  # why nothing is delivered any more
    suspended: str | None  # why its webhook is only probed now
    ended: int | None  # when it expired
    deleted: int | None  # when it was deleted; then it is not found any more
    pending: bool  # made, and not active yet
    replaying: bool  # waits for the matches of its history
    revision: int  # 1 when it was made, and one more with each change
    cost: int  # of the newest filter, for its tenant's quota
    filters: list[FilterRow]  # from the first to the last

    @property
    def state(self) -> str:
        """One of STATES. That it has ended or was stopped comes before what it was doing."""
        if self.ended is not None:
            return "expired"
        if self.disabled is not None:
            return "disabled"
        if self.failed is not None:
            return "failed"
        if self.paused:
            return "paused"
        if self.pending:
            return "pending"
        if self.replaying:
            return "replaying"
        return "active" if self.suspended is None else "suspended"

    @property
    def failed(self) -> str | None:
        """Why the filter in force is not matched; None if it is."""
        return self.filters[-1].failed if self.filters else None

    @property
    def not_replayed(self) -> bool:
        """Whether it is disabled because the history of its filter in force could not be matched."""
        return self.disabled is not None and self.disabled.startswith(NOT_REPLAYED)

    @property
    def repaired_from(self) -> int | None:
        """From which position on a new filter is to be matched, so that what this one missed is not lost."""
        if not self.filters:
            return None
        last = self.filters[-1]
        missed = (last.failed_from, last.deliver_from if self.not_replayed else None)
        return min((position for position in missed if position is not None), default=None)

    def missed(self) -> list[tuple[int, int | None, str]]:
        """Returns positions [start, end) of events that a failing filter was not matched with, and why.

        Events that a later filter is matched with are not missed.
        """
        found: list[tuple[int, int | None, str]] = []
        for at, row in enumerate(self.filters):
            if row.failed_from is not None and row.failed is not None:
                later = [one.deliver_from for one in self.filters[at + 1 :] if one.deliver_from is not None]
                ends = [end for end in (row.valid_to, min(later, default=None)) if end is not None]
                end = min(ends, default=None)
                start = max(row.failed_from, row.deliver_from or 0)
                if end is None or start < end:
                    found.append((start, end, row.failed))
        if self.not_replayed and self.filters[-1].deliver_from is not None:
            found.append((self.filters[-1].deliver_from, self.filters[-1].valid_from, str(self.disabled)))
        return sorted(found)

    @property
    def filter_from(self) -> int | None:
        """The position from which the text in force is valid."""
        started = [row.valid_from for row in self.filters if row.valid_from is not None]
        return started[-1] if started else None


class SubscriptionChanges(TypedDict, total=False):
    """What may change of a subscription besides its filter; what is left out stays."""

    delivery: str
    url: str | None
    secret: str | None
    old_secret: str | None
    old_secret_until: int | None
    select: str
    labels: Mapping[str, str]
    expires: int | None
    paused: bool
    disabled: str | None
    suspended: str | None


@dataclass(frozen=True)
class SubscriptionPage:
    """Some of the subscriptions that were asked for, and where the next ones begin."""

    subscriptions: Sequence[SubscriptionRow]
    next: str | None  # to be given as `after`; None: these were the last


@dataclass(frozen=True)
class TokenRow:
    """A token, without its secret."""

    id: str
    tenant: str
    label: str
    created: int


@dataclass(frozen=True)
class JobRow:
    """What the gateway asks of the driver, which writes the answer to a file; the gateway then closes the job."""

    id: str
    kind: str
    tenant: str
    request: dict[str, Any]
    created: int
    closed: int | None
    answer: dict[str, Any] | None
