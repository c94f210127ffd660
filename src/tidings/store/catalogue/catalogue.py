"""The catalogue: one object with all that its parts can do, and its smallest parts: tokens, and its extent."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa

from tidings.store.catalogue.catalogue_domains import CatalogueDomains, check_name
from tidings.store.catalogue.catalogue_filters import CatalogueFilters
from tidings.store.catalogue.catalogue_jobs import CatalogueJobs
from tidings.store.catalogue.catalogue_subscriptions import CatalogueSubscriptions
from tidings.store.catalogue.database import BUSY_SECONDS, Database, can_be_kept, now, plain, random_id
from tidings.store.catalogue.rows import TokenRow
from tidings.store.catalogue.schema import ALL_TENANTS, domains, filters, tokens

_PREFIX = "tdg_"
_of_hash = sa.select(tokens.c.tenant).where(tokens.c.hash == sa.bindparam("hash_"))


class CatalogueTokens:
    """The tokens of the catalogue, which say who is which tenant; only their hashes are kept."""

    _database: Database

    def create_token(self, tenant: str, label: str = "") -> str:
        """Make a token of a tenant; returns its secret, of which only the hash is kept."""
        check_name("tenant", tenant)
        secret = _PREFIX + secrets.token_urlsafe(32)
        row = {"hash": _hash(secret), "id": random_id("tok"), "tenant": tenant, "label": plain(label, "label")}
        with self._database.writing(tenant) as connection:
            connection.execute(sa.insert(tokens), {**row, "created": now()})
        return secret

    def tenant_of(self, secret: str) -> str | None:
        """Returns the tenant who has a token with this secret.

        The secret is as random as its hash is long, so the time of a lookup reveals nothing.
        """
        if not secret.startswith(_PREFIX):
            return None
        with self._database.reading(ALL_TENANTS) as connection:
            return connection.execute(_of_hash, {"hash_": _hash(secret)}).scalar_one_or_none()

    def tokens(self, tenant: str) -> list[TokenRow]:
        """Returns the tokens of a tenant, the oldest first."""
        wanted = sa.select(tokens.c.id, tokens.c.tenant, tokens.c.label, tokens.c.created)
        with self._database.reading(tenant) as connection:
            rows = connection.execute(wanted.where(tokens.c.tenant == tenant).order_by(tokens.c.created)).mappings()
            return [TokenRow(**row) for row in rows]

    def revoke_token(self, tenant: str, id: str) -> bool:
        """Revoke a token; returns whether it was valid."""
        if not can_be_kept(id):
            return False
        with self._database.writing(tenant) as connection:
            gone = connection.execute(sa.delete(tokens).where(tokens.c.tenant == tenant, tokens.c.id == id))
            return gone.rowcount > 0


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Extent:
    """The highest of each kind of number that a catalogue has given, and its domains."""

    last_filter: int  # its number; numbers of removed filters are not used again
    last_subscription: int  # its key
    last_position: int  # from or up to which a filter is valid; -1 if there is none
    domains: frozenset[str]  # by their keys


class CatalogueExtent:
    """The part of the catalogue that other files are compared with."""

    _database: Database

    def extent(self) -> Extent:
        """Returns how far the catalogue reaches."""
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


class Catalogue(
    CatalogueDomains, CatalogueSubscriptions, CatalogueFilters, CatalogueTokens, CatalogueJobs, CatalogueExtent
):
    """A catalogue in a file of SQLite, or in PostgreSQL by its URL; made if there is none.

    Any thread of any process may use it. A method is one transaction: on the disk when it returns, or as if it had not
    been called. A method that takes a tenant does not see what belongs to others.
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
