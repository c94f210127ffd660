"""What the gateway asks of the driver: backtests, and the history of a new subscription.

Only the gateway writes here: the driver writes its answers to files of its own, and the gateway closes a job with its
answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidings.store.catalogue.catalogue_domains import check_name
from tidings.store.catalogue.database import Database, can_be_kept, now, plain, random_id
from tidings.store.catalogue.rows import JobRow
from tidings.store.catalogue.schema import ALL_TENANTS, jobs, subscriptions

REPLAY = "replay"  # the kind of job that a subscription with a start in the past waits for

_columns = [jobs.c[name] for name in JobRow.__dataclass_fields__]


class CatalogueJobs:
    """The jobs of the catalogue."""

    _database: Database

    def add_job(self, kind: str, tenant: str, request: Mapping[str, Any]) -> str:
        """Add a job for the driver; returns its id."""
        check_name("tenant", tenant)
        with self._database.writing(tenant) as connection:
            return insert_job(connection, kind, tenant, request)

    def open_jobs(self) -> list[JobRow]:
        """Returns the jobs that are not closed, of all tenants, the oldest first."""
        wanted = sa.select(*_columns).where(jobs.c.closed.is_(None)).order_by(jobs.c.number)
        with self._database.reading(ALL_TENANTS) as connection:
            return [_row(row) for row in connection.execute(wanted).mappings()]

    def job(self, id: str, tenant: str | None = None) -> JobRow | None:
        """Returns a job; with a tenant, only if it belongs to that tenant."""
        if not can_be_kept(id):
            return None
        wanted = sa.select(*_columns).where(jobs.c.id == id)
        if tenant is not None:
            wanted = wanted.where(jobs.c.tenant == tenant)
        with self._database.reading(ALL_TENANTS if tenant is None else tenant) as connection:
            found = connection.execute(wanted).mappings().first()
        return None if found is None else _row(found)

    def close_job(self, id: str, answer: Mapping[str, Any] | None = None) -> bool:
        """Close a job with its answer; returns whether it was open. A subscription that waited for it continues."""
        written = None if answer is None else plain(json.dumps(answer, ensure_ascii=False), "answer")
        with self._database.writing(ALL_TENANTS) as connection:
            closed = connection.execute(
                sa.update(jobs)
                .where(jobs.c.id == id, jobs.c.closed.is_(None))
                .values(closed=now(), answer=written)
                .returning(jobs.c.kind, jobs.c.subscription_key)
            ).first()
            if closed is not None and closed.kind == REPLAY:
                waiting = sa.update(subscriptions).where(subscriptions.c.key == closed.subscription_key)
                connection.execute(waiting.values(replaying=False))
        return closed is not None

    def forget_jobs(self, before: int) -> int:
        """Remove jobs that were closed before a time; returns how many."""
        with self._database.writing(ALL_TENANTS) as connection:
            return connection.execute(sa.delete(jobs).where(jobs.c.closed < before)).rowcount


def insert_job(
    connection: Connection, kind: str, tenant: str, request: Mapping[str, Any], subscription_key: int | None = None
) -> str:
    id = random_id("job")
    row = {"id": id, "kind": kind, "tenant": tenant, "request": plain(json.dumps(request, ensure_ascii=False), "job")}
    connection.execute(sa.insert(jobs), {**row, "created": now(), "subscription_key": subscription_key})
    return id


def _row(found: Any) -> JobRow:
    answer = found["answer"]
    read = {"request": json.loads(found["request"]), "answer": None if answer is None else json.loads(answer)}
    return JobRow(**{**found, **read})
