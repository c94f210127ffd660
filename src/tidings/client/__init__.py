"""A Python client of the service: publish, subscribe, take what was delivered.

    with tidings.Client() as client:
        client.put_domain("quotes", {"attributes": [{"name": "price", "type": "double"}]})
        dear = client.subscribe("quotes", "price > 8.30")
        client.publish("quotes", {"price": 8.40})
        for notification in client.notifications(dear.id):
            print(notification.position, notification.event)

`AsyncClient` has the same methods. Both only carry out steps (send, wait, hand over); what to send, when to
try again and what an answer means is said once, in `flows`, and knows no socket and no clock.

settings    where the service is, and which token to send
encoding    events as CloudEvents, and in bodies of a size that the service takes
answers     what the service says, typed
errors      what it refuses, and that it is not there
calls       every request that there is
retrying    when to try again
server_sent a stream of Server-Sent Events, read piece by piece
flows       requests joined to what a user asks for
"""

from tidings.client.answers import (
    Backtest,
    DeadLetter,
    DomainState,
    EventMatches,
    FilterTest,
    Health,
    NearMiss,
    Notification,
    Pulled,
    Subscription,
)
from tidings.client.asynchronous import AsyncClient
from tidings.client.retrying import Retries
from tidings.client.service_errors import ServiceError, UnreachableError
from tidings.client.synchronous import Client

__all__ = [
    "AsyncClient", "Backtest", "Client", "DeadLetter", "DomainState", "EventMatches", "FilterTest", "Health",
    "NearMiss", "Notification", "Pulled", "Retries", "ServiceError", "Subscription", "UnreachableError",
]  # fmt: skip
