"""The domains of each tenant, and the revisions of the catalogue."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa

from tidings.store.catalogue.database import (
    CatalogueChangedError,
    CatalogueConflictError,
    CatalogueError,
    Database,
    can_be_kept,
    next_revision,
    now,
    plain,
)
from tidings.store.catalogue.rows import DomainRow
from tidings.store.catalogue.schema import ALL_TENANTS, catalogue, domains, filters, subscriptions

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_one = (domains.c.tenant == sa.bindparam("tenant_")) & (domains.c.name == sa.bindparam("name_"))
_find = sa.select(domains).where(_one)
_change = sa.update(domains).where(_one)


class CatalogueDomains:
    """The domains of the catalogue."""

    _database: Database

    def revision(self, tenant: str | None = None, domain: str | None = None) -> int:
        """Returns how often filters and domains have changed; for one domain, the revision of its last change.

        If you read a revision and then rows, the rows have every change up to that revision. It is 0 for a domain that
        does not exist.
        """
        if tenant is None or domain is None:
            with self._database.reading(ALL_TENANTS) as connection:
                return int(connection.execute(sa.select(catalogue.c.revision)).scalar_one())
        found = self.domain(tenant, domain)
        return 0 if found is None else found.revision

    def put_domain(
        self,
        tenant: str,
        name: str,
        definition: str,
        *,
        inferred: bool,
        placement: str | None = None,
        replace: bool = True,
        at_revision: int | None = None,
    ) -> DomainRow:
        """Add a domain or replace its definition and placement; without `replace`, one that is there stays as it is.

        With `at_revision`, raises CatalogueChangedError unless the domain is at this revision; 0: not there.
        """
        check_name("tenant", tenant)
        check_name("domain", name)
        plain(definition, "domain")
        with self._database.writing(tenant) as connection:
            found = _row(connection.execute(_find, {"tenant_": tenant, "name_": name}).mappings().first())
            if at_revision is not None and at_revision != (0 if found is None else found.revision):
                raise CatalogueChangedError(f"domain: '{name}' or its filters have changed in the meantime; try again")
            time = now()
            if found is None:
                row = DomainRow(tenant, name, definition, inferred, time, time, next_revision(connection), placement)
                connection.execute(sa.insert(domains), vars(row))
            elif not replace or (found.definition, found.inferred, found.placement) == (
                definition,
                inferred,
                placement,
            ):
                row = found
            else:
                revision = next_revision(connection)
                row = DomainRow(tenant, name, definition, inferred, found.created, time, revision, placement)
                what = {"definition": definition, "placement": placement, "inferred": inferred}
                when = {"updated": time, "revision": revision}
                connection.execute(_change, {"tenant_": tenant, "name_": name, **what, **when})
        return row

    def domain(self, tenant: str, name: str) -> DomainRow | None:
        if not can_be_kept(tenant, name):
            return None
        with self._database.reading(tenant) as connection:
            return _row(connection.execute(_find, {"tenant_": tenant, "name_": name}).mappings().first())

    def domains(self, tenant: str | None = None) -> list[DomainRow]:
        """Returns the domains of a tenant, or of all, by tenant and name."""
        wanted = sa.select(domains)
        if tenant is not None:
            wanted = wanted.where(domains.c.tenant == tenant)
        with self._database.reading(ALL_TENANTS if tenant is None else tenant) as connection:
            rows = [DomainRow(**row) for row in connection.execute(wanted).mappings()]
        return sorted(rows, key=lambda row: (row.tenant, row.name))  # databases differ in how they order texts

    def domains_by_tenant(self) -> dict[str, tuple[int, int]]:
        """Returns how many domains each tenant has, and how many of them name a placement."""
        counts = sa.func.count(), sa.func.count(domains.c.placement)
        wanted = sa.select(domains.c.tenant, *counts).group_by(domains.c.tenant)
        with self._database.reading(ALL_TENANTS) as connection:
            return {str(tenant): (int(count), int(named)) for tenant, count, named in connection.execute(wanted)}

    def delete_domain(self, tenant: str, name: str) -> DomainRow | None:
        """Remove a domain that has no subscriptions; returns it as it was, None if there is none."""
        if not can_be_kept(tenant, name):
            return None
        with self._database.writing(tenant) as connection:
            found = _row(connection.execute(_find, {"tenant_": tenant, "name_": name}).mappings().first())
            if found is None:
                return None
            of_domain = (subscriptions.c.tenant == tenant) & (subscriptions.c.domain == name)
            live = sa.select(sa.func.count()).where(of_domain, subscriptions.c.deleted.is_(None))
            count = connection.execute(live).scalar_one()
            if count:
                raise CatalogueConflictError(f"domain: '{name}' has {count} subscriptions; delete them first")
            next_revision(connection)
            connection.execute(sa.delete(filters).where(filters.c.tenant == tenant, filters.c.domain == name))
            connection.execute(sa.delete(subscriptions).where(of_domain))
            connection.execute(sa.delete(domains).where(domains.c.tenant == tenant, domains.c.name == name))
        return found


def check_name(kind: str, name: str) -> None:
    """Raise unless a name can be that of a file, and a part of an address."""
    if not _NAME.fullmatch(name):
        raise CatalogueError(
            f"{kind}: '{name}' is not a valid name; give up to 63 of a-z, 0-9, '_' and '-', first a letter or digit"
        )


def _row(found: Any) -> DomainRow | None:
    return None if found is None else DomainRow(**found)
