"""Who wants what: domains, subscriptions with their validity in positions, tokens, and jobs for the driver.

    catalogue = Catalogue("data/catalogue.sqlite")          # or postgresql://user@host/database
    made = catalogue.create(NewSubscription(tenant="ada", domain="flights", filter="price < 100"))
    catalogue.activate(made.filters[-1].number, log.end)    # from here on it is promised

catalogue      Catalogue, the one entry; the parts below are what it is made of
domains        what events look like
subscriptions  made, changed, found, ended
filters        each text that a subscription's filter has had, with its validity; what the driver reads
tokens         who is which tenant
jobs           what the gateway asks of the driver
extent         what other files may refer to
rows           what all of these answer
schema         the tables
database       SQLite and PostgreSQL: opening, transactions, errors in our words
"""

from tidings.store.catalogue.catalogue import Catalogue
from tidings.store.catalogue.catalogue_errors import (
    CatalogueBusyError,
    CatalogueChangedError,
    CatalogueConflictError,
    CatalogueError,
    CatalogueMissingError,
)
from tidings.store.catalogue.extent import Extent
from tidings.store.catalogue.rows import (
    DomainRow,
    FilterRow,
    JobRow,
    NewSubscription,
    SubscriptionChanges,
    SubscriptionPage,
    SubscriptionRow,
    TokenRow,
)

__all__ = [
    "Catalogue",
    "CatalogueBusyError",
    "CatalogueChangedError",
    "CatalogueConflictError",
    "CatalogueError",
    "CatalogueMissingError",
    "DomainRow",
    "Extent",
    "FilterRow",
    "JobRow",
    "NewSubscription",
    "SubscriptionChanges",
    "SubscriptionPage",
    "SubscriptionRow",
    "TokenRow",
]
