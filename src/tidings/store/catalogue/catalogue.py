"""The catalogue: one object with all that its parts can do."""

from __future__ import annotations

import os
from typing import Self

from tidings.store.catalogue.database import BUSY_SECONDS, Database
from tidings.store.catalogue.domain_table import Domains
from tidings.store.catalogue.extent import Extents
from tidings.store.catalogue.filter_table_rows import Filters
from tidings.store.catalogue.job_queue import Jobs
from tidings.store.catalogue.subscription_table import Subscriptions
from tidings.store.catalogue.tokens import Tokens


class Catalogue(Domains, Subscriptions, Filters, Tokens, Jobs, Extents):
    """A catalogue in a file of SQLite, or in PostgreSQL by its URL; made where there is none.

    Any thread of any process may use it. A method is one transaction: on the disk when it returns, or as
    if it had not been called. Where a method takes a tenant, what belongs to others is not there.
    """

    def __init__(self, place: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._database = Database(place, busy_seconds=busy_seconds)
        self.place = self._database.place  # without the password

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
