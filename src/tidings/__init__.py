"""Content-based publish/subscribe: every event meets the subscriptions whose filter it satisfies.

model      domains, attributes, events, subscriptions
filter     Spark SQL WHERE clauses: text, tree, meaning, normal form
xml        documents, feeds, and paths over them
matching   the exact matcher, and why an event matched or did not
kernels    how inner loops are compiled to machine code
systems    five published systems: where events and subscriptions meet
simulator  the systems as networks that fail on purpose
store      the log, the catalogue, the mailboxes
pipeline   matching on Spark, batch and stream
service    the gateway and the Spark driver behind it
client     publish and subscribe over HTTP
testing    oracles, generators and workloads for your own tests
demo       real flights against a few thousand subscriptions
commands   what each command does
cli        the command `tidings`
errors     what can go wrong, by who can correct it
extras     optional dependencies, and the error if one is missing
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
