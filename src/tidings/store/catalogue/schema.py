"""The tables of the catalogue, the same in SQLite and in PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from tidings.store import formats

FORMAT = formats.CATALOGUE
APPLICATION = 0x54444E43  # what SQLite's header says this file is: "TDNC"
ALL_TENANTS = "*"  # no tenant's name: what the service itself reads by

metadata = sa.MetaData()
_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # only INTEGER counts by itself there

# One row. Who writes locks it first, so that revisions become visible in their order.
catalogue = sa.Table(
    "catalogue",
    metadata,
    sa.Column("one", sa.Integer, sa.CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)

domains = sa.Table(
    "domains",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("placement", sa.Text),
    sa.Column("inferred", sa.Boolean, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("updated", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)

subscriptions = sa.Table(
    "subscriptions",
    metadata,
    sa.Column("key", _number, sa.Identity(), primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("domain", sa.Text, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("delivery", sa.Text, nullable=False),
    sa.Column("url", sa.Text),
    sa.Column("secret", sa.Text),
    sa.Column("old_secret", sa.Text),
    sa.Column("old_secret_until", sa.BigInteger),
    sa.Column("select", sa.Text, nullable=False),
    sa.Column("labels", sa.Text, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("updated", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.BigInteger),
    sa.Column("paused", sa.Boolean, nullable=False),
    sa.Column("disabled", sa.Text),
    sa.Column("suspended", sa.Text),
    sa.Column("ended", sa.BigInteger),
    sa.Column("deleted", sa.BigInteger),
    sa.Column("pending", sa.Boolean, nullable=False),
    sa.Column("replaying", sa.Boolean, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("cost", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "domain"], ["domains.tenant", "domains.name"]),
    sqlite_autoincrement=True,  # else SQLite gives the key of the last row again when that is removed
)


def _index(name: str, *columns: sa.Column[object], where: sa.ColumnElement[bool], unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


_live = subscriptions.c.deleted.is_(None)
_index("subscriptions_by_id", subscriptions.c.tenant, subscriptions.c.id, where=_live, unique=True)
_index("subscriptions_by_tenant", subscriptions.c.tenant, subscriptions.c.key, where=_live)
_index("subscriptions_by_domain", subscriptions.c.tenant, subscriptions.c.domain, subscriptions.c.key, where=_live)
_index("subscriptions_deleted", subscriptions.c.tenant, subscriptions.c.domain, where=sa.not_(_live))
_index(
    "subscriptions_to_expire",
    subscriptions.c.expires,
    where=sa.and_(_live, subscriptions.c.ended.is_(None), subscriptions.c.expires.is_not(None)),
)
_index("subscriptions_by_webhook", subscriptions.c.key, where=sa.and_(_live, subscriptions.c.delivery == "webhook"))

# What to find subscriptions by; what they are shown with is in their own row.
labels = sa.Table(
    "labels",
    metadata,
    sa.Column("subscription_key", sa.BigInteger, sa.ForeignKey("subscriptions.key", ondelete="CASCADE")),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.PrimaryKeyConstraint("subscription_key", "name"),
)
sa.Index("labels_by_name", labels.c.tenant, labels.c.name, labels.c.value, labels.c.subscription_key)

filters = sa.Table(
    "filters",
    metadata,
    sa.Column("number", _number, sa.Identity(), primary_key=True),
    sa.Column(
        "subscription_key", sa.BigInteger, sa.ForeignKey("subscriptions.key", ondelete="CASCADE"), nullable=False
    ),
    sa.Column("subscription", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("domain", sa.Text, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("valid_from", sa.BigInteger),
    sa.Column("valid_to", sa.BigInteger),
    sa.Column("replay_from", sa.BigInteger),
    sa.Column("failed_from", sa.BigInteger),
    sa.Column("failed", sa.Text),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
sa.Index("filters_by_revision", filters.c.tenant, filters.c.domain, filters.c.revision)
sa.Index("filters_by_subscription", filters.c.subscription_key)
_index("filters_unfinished", filters.c.number, where=filters.c.valid_from.is_(None))

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),  # SHA-256 of the secret
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
)
sa.Index("tokens_by_tenant", tokens.c.tenant, tokens.c.created)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("number", _number, sa.Identity(), primary_key=True),  # their order
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("closed", sa.BigInteger),
    sa.Column("answer", sa.Text),
    sa.Column("subscription_key", sa.BigInteger, sa.ForeignKey("subscriptions.key", ondelete="CASCADE")),
    sqlite_autoincrement=True,
)
_index("jobs_open", jobs.c.number, where=jobs.c.closed.is_(None))
_index("jobs_of_subscription", jobs.c.subscription_key, where=jobs.c.subscription_key.is_not(None))

OF_TENANTS = (domains, subscriptions, labels, filters, tokens, jobs)

# A second lock behind the one that every query has: PostgreSQL itself shows a transaction the rows of its
# tenant alone. (Not to a superuser, whom it shows everything.)
ROW_LEVEL_SECURITY = tuple(
    statement
    for table in OF_TENANTS
    for statement in (
        f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table.name} FORCE ROW LEVEL SECURITY",  # for the owner of the tables too, who we are
        f"CREATE POLICY tenant ON {table.name} USING "
        f"(current_setting('tidings.tenant', true) IN (tenant, '{ALL_TENANTS}'))",
    )
)
