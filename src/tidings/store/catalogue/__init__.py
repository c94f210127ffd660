"""Who wants what: domains, subscriptions with their validity in positions, tokens, and jobs for the driver.

    catalogue = Catalogue("data/catalogue.sqlite")          # or postgresql://user@host/database
    made = catalogue.create(NewSubscription(tenant="ada", domain="flights", filter="price < 100"))
    catalogue.activate(made.filters[-1].number, log.end)    # from here on it is promised

catalogue                 Catalogue, the one entry, made of the parts below; tokens and the extent
catalogue_domains         what events look like
catalogue_subscriptions   subscriptions: made, changed, found, ended
catalogue_filters         each text that a subscription's filter has had, with its validity; what the driver reads
catalogue_jobs            what the gateway asks of the driver
rows                      the records that all of these return
schema                    the tables
database                  SQLite and PostgreSQL: opening, transactions, errors
"""

from tidings.store.catalogue.catalogue import Catalogue, Extent
from tidings.store.catalogue.database import (
    CatalogueBusyError,
    CatalogueChangedError,
    CatalogueConflictError,
    CatalogueError,
    CatalogueMissingError,
)
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
