"""A Python client of the service: publish, subscribe, take what was delivered.

    with tidings.Client() as client:
        client.put_domain("quotes", {"attributes": [{"name": "price", "type": "double"}]})
        dear = client.subscribe("quotes", "price > 8.30")
        client.publish("quotes", {"price": 8.40})
        for notification in client.notifications(dear.id):
            print(notification.position, notification.event)

`AsyncClient` has the same methods. Both only carry out steps (send, wait, read on); what to send, when to try again
and what a response means is in `flows`, which uses no socket and no clock.

connection_settings  where the service is, which token to send, how long to retry
calls                every request, and events as CloudEvents in bodies of a size that the service takes
responses            what the service sends back, typed, and its errors
flows                requests joined to what a user asks for, with retries
server_sent          a stream of Server-Sent Events, read piece by piece
transport            what both clients ask of httpx2
synchronous          Client
asynchronous         AsyncClient
"""

from tidings.client.asynchronous import AsyncClient
from tidings.client.connection_settings import Retries
from tidings.client.responses import (
    BacktestResult,
    DeadLetter,
    DomainState,
    EventMatches,
    FilterTest,
    Health,
    NearMiss,
    Notification,
    Pulled,
    ServiceError,
    SubscriptionState,
    UnreachableError,
)
from tidings.client.synchronous import Client

__all__ = [
    "AsyncClient", "BacktestResult", "Client", "DeadLetter", "DomainState", "EventMatches", "FilterTest", "Health",
    "NearMiss", "Notification", "Pulled", "Retries", "ServiceError", "SubscriptionState", "UnreachableError",
]  # fmt: skip
