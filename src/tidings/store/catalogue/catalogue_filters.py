"""Each text that a subscription's filter has, had or is about to have: a row with a number and its validity.

    number   filter         valid in
       7     price < 100    [120, 450)          ── changed when the log ended at 450
       9     price < 80     [450, …             ── in force
      12     price < 60     not yet             ── committed, and about to be activated

A row is committed first; only then is the end of the log read, which becomes its `valid_from`. So every event from
there on was appended after the row was there, and a reader that reads the log's end first and the catalogue's revision
second knows every row that is valid for the events it has seen. The validities of one subscription are disjoint and in
the order of the numbers; a change that was overtaken by a later one has an empty validity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidings.store.catalogue.catalogue_jobs import REPLAY, insert_job
from tidings.store.catalogue.database import CatalogueMissingError, Database, in_parts, next_revision, now
from tidings.store.catalogue.rows import FilterRow
from tidings.store.catalogue.schema import ALL_TENANTS, domains, filters, subscriptions

COLUMNS = [filters.c[name] for name in FilterRow.__dataclass_fields__]
_earlier = filters.alias()
_is_first = ~sa.exists().where(
    _earlier.c.subscription_key == filters.c.subscription_key, _earlier.c.number < filters.c.number
)
_found = (
    sa.select(*COLUMNS, subscriptions.c.pending, _is_first)
    .join(subscriptions, subscriptions.c.key == filters.c.subscription_key)
    .where(filters.c.number.in_(sa.bindparam("numbers", expanding=True)))
    .order_by(filters.c.number)
)
_begin_row = sa.update(filters).where(filters.c.number == sa.bindparam("number_"))
_begin_row = _begin_row.values(valid_from=sa.bindparam("at_"), revision=sa.bindparam("revision_"))
_begin_subscription = (
    sa.update(subscriptions)
    .where(subscriptions.c.key == sa.bindparam("key_"))
    .values(pending=False, replaying=sa.bindparam("replaying_"))
)
_change_subscription = (
    sa.update(subscriptions)
    .where(subscriptions.c.key == sa.bindparam("key_"))
    .values(filter=sa.bindparam("filter_"), updated=sa.bindparam("now_"), revision=subscriptions.c.revision + 1)
)
_unended_of = (filters.c.subscription_key == sa.bindparam("key_")) & filters.c.valid_to.is_(None)
_last_start = sa.select(sa.func.max(filters.c.valid_from)).where(_unended_of)
_end_rows = (
    sa.update(filters)
    .where(_unended_of, filters.c.number < sa.bindparam("number_"))
    .values(
        valid_from=sa.func.coalesce(filters.c.valid_from, sa.bindparam("at_")),
        valid_to=sa.bindparam("at_"),
        revision=sa.bindparam("revision_"),
    )
)
_touch_domain = (
    sa.update(domains)
    .where(domains.c.tenant == sa.bindparam("tenant_"), domains.c.name == sa.bindparam("name_"))
    .values(revision=sa.bindparam("revision_"))
)
_of_domain = sa.select(*COLUMNS).where(
    filters.c.tenant == sa.bindparam("tenant_"), filters.c.domain == sa.bindparam("domain_")
)
_changed = _of_domain.where(filters.c.revision > sa.bindparam("after_")).order_by(filters.c.revision, filters.c.number)
_needed = _of_domain.where(
    filters.c.valid_to.is_(None)
    | ((filters.c.valid_to > sa.bindparam("from_")) & (filters.c.valid_to > filters.c.valid_from))
).order_by(filters.c.number)


class CatalogueFilters:
    """The filters of the catalogue and their validity."""

    _database: Database

    def activate(self, number: int, position: int) -> FilterRow:
        """Make a filter valid from a position: the log's end, read after the row was made.

        The filter that its subscription had before ends there. One that is active already, or whose subscription was
        deleted, or that a later change has overtaken, stays as it is.
        """
        return self.activate_many([number], position)[0]

    def activate_many(self, numbers: Iterable[int], position: int) -> list[FilterRow]:
        """Make filters valid from a position, in one transaction; returns them in the order of their numbers."""
        wanted = sorted(set(numbers))
        activated: list[FilterRow] = []
        with self._database.writing(ALL_TENANTS) as connection:
            revision = 0
            for some in in_parts(wanted):
                rows = connection.execute(_found, {"numbers": list(some)}).all()
                if len(rows) < len(some):
                    missing = sorted(set(some) - {row.number for row in rows})
                    raise CatalogueMissingError(f"filter: there is none with the number {missing[0]}")
                if not revision and any(row.valid_from is None for row in rows):
                    revision = next_revision(connection)
                activated += _activated(connection, rows, position, revision)
            touched = {(row.tenant, row.domain) for row in activated if row.revision == revision}
            touch_domains(connection, touched, revision)
        return activated

    def unfinished(self) -> list[FilterRow]:
        """Returns filters that are not activated, of all tenants: left by a crash, or under way."""
        wanted = sa.select(*COLUMNS).where(filters.c.valid_from.is_(None)).order_by(filters.c.number)
        with self._database.reading(ALL_TENANTS) as connection:
            return rows_of(connection.execute(wanted))

    def filters_of(self, tenant: str, domain: str, *, from_position: int = 0) -> list[FilterRow]:
        """Returns the filters of a domain that have not ended before a position: what its index has to have."""
        with self._database.reading(tenant) as connection:
            return rows_of(connection.execute(_needed, {"tenant_": tenant, "domain_": domain, "from_": from_position}))

    def filter_characters(self, tenant: str, domain: str) -> int:
        """How many characters all filters of a domain have together, those that have ended too."""
        of_domain = (filters.c.tenant == tenant) & (filters.c.domain == domain)
        total = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(filters.c.filter)), 0)).where(of_domain)
        with self._database.reading(tenant) as connection:
            return int(connection.execute(total).scalar_one())

    def filter_counts(self) -> dict[str, int]:
        """Returns how many filters each domain has that have not ended, by its key."""
        of_domain = (filters.c.tenant, filters.c.domain)
        wanted = sa.select(*of_domain, sa.func.count()).where(filters.c.valid_to.is_(None)).group_by(*of_domain)
        with self._database.reading(ALL_TENANTS) as connection:
            return {f"{tenant}.{domain}": count for tenant, domain, count in connection.execute(wanted)}

    def changed_filters(self, tenant: str, domain: str, after_revision: int) -> list[FilterRow]:
        """Returns the filters of a domain that have changed since a revision, as they are now, the oldest first.

        They include all changes up to the revision of the last one.
        """
        with self._database.reading(tenant) as connection:
            return rows_of(
                connection.execute(_changed, {"tenant_": tenant, "domain_": domain, "after_": after_revision})
            )


def rows_of(result: Iterable[Any]) -> list[FilterRow]:
    return [FilterRow(*row) for row in result]


def touch_domains(connection: Connection, touched: Iterable[tuple[str, str]], revision: int) -> None:
    """Note that filters of these domains have changed; raises if a domain does not exist."""
    for tenant, name in touched:
        values = {"tenant_": tenant, "name_": name, "revision_": revision}
        if not connection.execute(_touch_domain, values).rowcount:
            raise CatalogueMissingError(f"domain: '{name}' does not exist; describe it, or publish its first events")


def end_filters(connection: Connection, subscription_key: int, position: int, revision: int) -> None:
    """End the filters of a subscription at a position, or where they begin if that is later."""
    last = connection.execute(_last_start, {"key_": subscription_key}).scalar_one()
    at = position if last is None else max(position, last)
    values = {"key_": subscription_key, "number_": (1 << 63) - 1, "at_": at, "revision_": revision}
    connection.execute(_end_rows, values)


def _activated(connection: Connection, found: Sequence[Any], position: int, revision: int) -> list[FilterRow]:
    activated: list[FilterRow] = []
    begun: list[dict[str, Any]] = []
    started: list[dict[str, Any]] = []
    for *columns, pending, is_first in found:
        row = FilterRow(*columns)
        if row.valid_from is not None:
            activated.append(row)
            continue
        # A change may be activated before the creation that it followed.
        at = position if is_first else _succeed(connection, row, position, revision)
        replaying = row.replay_from is not None and row.replay_from < at
        if replaying:
            request = {
                "number": row.number,
                "domain": row.domain,
                "filter": row.filter,
                "subscription": row.subscription,
            }
            request |= {"from": row.replay_from, "to": at}
            insert_job(connection, REPLAY, row.tenant, request, row.subscription_key)
        begun.append({"number_": row.number, "at_": at, "revision_": revision})
        if pending or replaying:
            started.append({"key_": row.subscription_key, "replaying_": replaying})
        activated.append(dataclasses.replace(row, valid_from=at, revision=revision))
    if begun:
        connection.execute(_begin_row, begun)
    if started:
        connection.execute(_begin_subscription, started)
    return activated


def _succeed(connection: Connection, row: FilterRow, position: int, revision: int) -> int:
    """End the earlier filters where one begins; returns where that is."""
    last = connection.execute(_last_start, {"key_": row.subscription_key}).scalar_one()
    at = position if last is None else max(position, last)  # an earlier change may have read a later end of the log
    values = {"key_": row.subscription_key, "number_": row.number, "at_": at, "revision_": revision}
    connection.execute(_end_rows, values)
    connection.execute(_change_subscription, {"key_": row.subscription_key, "filter_": row.filter, "now_": now()})
    return at
