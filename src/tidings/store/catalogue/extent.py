"""How far a catalogue reaches: what other files may refer to."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tidings.store.catalogue.database import Database
from tidings.store.catalogue.schema import ALL_TENANTS, domains, filters


@dataclass(frozen=True)
class Extent:
    """The highest of each kind of number that a catalogue has given, and its domains."""

    last_filter: int  # its number; those of filters that are gone are not given again
    last_subscription: int  # its key
    last_position: int  # from or up to which a filter is valid; -1 where there is none
    domains: frozenset[str]  # by their keys


class Extents:
    """The part of the catalogue that is compared with other files."""

    _database: Database

    def extent(self) -> Extent:
        with self._database.reading(ALL_TENANTS) as connection:
            places = [
                sa.func.coalesce(sa.func.max(column), -1) for column in (filters.c.valid_from, filters.c.valid_to)
            ]
            last = max(connection.execute(sa.select(*places)).one())
            keys = frozenset(
                f"{tenant}.{name}" for tenant, name in connection.execute(sa.select(domains.c.tenant, domains.c.name))
            )
            if self._database.is_sqlite:
                rows = connection.execute(sa.text("SELECT name, seq FROM sqlite_sequence"))
                given = {name: int(number) for name, number in rows}
            else:
                names = {"filters": "filters_number_seq", "subscriptions": "subscriptions_key_seq"}
                given = {
                    table: int(connection.execute(sa.text(f"SELECT last_value FROM {name}")).scalar_one())
                    for table, name in names.items()
                }
        return Extent(given.get("filters", 0), given.get("subscriptions", 0), last, keys)
