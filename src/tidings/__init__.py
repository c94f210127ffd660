"""Content-based publish/subscribe: events meet the filters that ask for them.

model      domains, events, subscriptions, and filters (Spark SQL WHERE clauses)
matching   the exact matcher, and why an event matched or did not
testing    oracles, generators and workloads, for testing against
demo       real flights against a few thousand subscriptions
cli        the command `tidings`
"""

from tidings.errors import DomainError, EventError, FilterError, SubscriptionError, TidingsError
from tidings.matching.explain import Explanation
from tidings.matching.matcher import Matcher
from tidings.matching.matches import Matches
from tidings.model.attribute import Attribute
from tidings.model.domain import Domain, dump_domains, load_domains
from tidings.model.event import EventBatch, read_events
from tidings.model.event_json import parse_events
from tidings.model.filter.compile import compile_filters
from tidings.model.filter.describe import describe_filter
from tidings.model.filter.parse import parse_filter
from tidings.model.infer import infer_domain
from tidings.model.subscription import Subscription

__version__ = "0.1.0"

__all__ = [
    "Attribute", "Domain", "DomainError", "EventBatch", "EventError", "Explanation", "FilterError", "Matcher",
    "Matches", "Subscription", "SubscriptionError", "TidingsError", "compile_filters", "describe_filter",
    "dump_domains", "infer_domain", "load_domains", "parse_events", "parse_filter", "read_events",
]  # fmt: skip
