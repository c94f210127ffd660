"""Content-based publish/subscribe: events meet the filters that ask for them.

model      domains, events, subscriptions, and filters (Spark SQL WHERE clauses)
matching   the exact matcher, and why an event matched or did not
client     publish and subscribe over HTTP
service    the gateway and the Spark driver behind it
pipeline   matching on Spark, batch and stream
store      the log, the catalogue, the mailboxes
testing    oracles, generators and workloads, for testing against
demo       real flights against a few thousand subscriptions
cli        the command `tidings`
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidings.client import AsyncClient, Client, ServiceError
    from tidings.errors import DomainError, EventError, FilterError, SubscriptionError, TidingsError
    from tidings.filter.compile.compiler import compile_filters
    from tidings.filter.normal.description import describe_filter
    from tidings.filter.syntax.parser import parse_filter
    from tidings.matching.explain.explanation import Explanation
    from tidings.matching.matcher import Matcher
    from tidings.matching.matches import Matches
    from tidings.model.domain import Attribute, Domain, dump_domains, load_domains
    from tidings.model.event import EventBatch, read_events
    from tidings.model.event_json import parse_events
    from tidings.model.infer import infer_domain
    from tidings.model.subscription import Subscription

__version__ = "0.1.0"

# Each name is imported when it is first asked for: a process of Spark that only reads a log, or a client that only
# publishes, need not wait a second for the matcher's kernels.
_PLACES = {
    "AsyncClient": "tidings.client",
    "Client": "tidings.client",
    "ServiceError": "tidings.client",
    "DomainError": "tidings.errors",
    "EventError": "tidings.errors",
    "FilterError": "tidings.errors",
    "SubscriptionError": "tidings.errors",
    "TidingsError": "tidings.errors",
    "Explanation": "tidings.matching.explain.explanation",
    "Matcher": "tidings.matching.matcher",
    "Matches": "tidings.matching.matches",
    "Attribute": "tidings.model.domain",
    "Domain": "tidings.model.domain",
    "dump_domains": "tidings.model.domain",
    "load_domains": "tidings.model.domain",
    "EventBatch": "tidings.model.event",
    "read_events": "tidings.model.event",
    "parse_events": "tidings.model.event_json",
    "compile_filters": "tidings.filter.compile.compiler",
    "describe_filter": "tidings.filter.normal.description",
    "parse_filter": "tidings.filter.syntax.parser",
    "infer_domain": "tidings.model.infer",
    "Subscription": "tidings.model.subscription",
}

__all__ = [
    "AsyncClient",
    "Attribute",
    "Client",
    "Domain",
    "DomainError",
    "EventBatch",
    "EventError",
    "Explanation",
    "FilterError",
    "Matcher",
    "Matches",
    "ServiceError",
    "Subscription",
    "SubscriptionError",
    "TidingsError",
    "compile_filters",
    "describe_filter",
    "dump_domains",
    "infer_domain",
    "load_domains",
    "parse_events",
    "parse_filter",
    "read_events",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'tidings' has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
