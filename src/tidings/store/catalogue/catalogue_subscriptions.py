"""Subscriptions: made, changed, found, ended.

What is made or changed here concerns no event yet. `activate` gives a new filter its validity (see
`catalogue_filters`); only then is the subscriber told that the subscription is there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from tidings.store.catalogue.catalogue_filters import COLUMNS, end_filters, rows_of, touch_domains
from tidings.store.catalogue.database import (
    CatalogueConflictError,
    CatalogueError,
    CatalogueMissingError,
    Database,
    can_be_kept,
    in_parts,
    next_revision,
    now,
    plain,
    random_id,
)
from tidings.store.catalogue.rows import (
    DELIVERIES,
    SELECTIONS,
    STATES,
    FilterRow,
    NewSubscription,
    SubscriptionChanges,
    SubscriptionPage,
    SubscriptionRow,
)
from tidings.store.catalogue.schema import ALL_TENANTS, filters, jobs, labels, subscriptions

Found = Mapping[str, Any] | RowMapping  # the columns of a subscription

MAX_ID_LENGTH = 255
_EXPIRED_AT_ONCE = 1_000

_columns = [subscriptions.c[name] for name in SubscriptionRow.__dataclass_fields__ if name != "filters"]
_live = subscriptions.c.deleted.is_(None)
_find = sa.select(*_columns).where(
    _live, subscriptions.c.tenant == sa.bindparam("tenant_"), subscriptions.c.id == sa.bindparam("id_")
)
_taken = sa.select(subscriptions.c.id).where(
    _live,
    subscriptions.c.tenant == sa.bindparam("tenant_"),
    subscriptions.c.id.in_(sa.bindparam("ids", expanding=True)),
)
_insert = sa.insert(subscriptions).returning(subscriptions.c.key)
_insert_sorted = sa.insert(subscriptions).returning(subscriptions.c.key, sort_by_parameter_order=True)
_insert_filter = sa.insert(filters).returning(filters.c.number)
_insert_filters_sorted = sa.insert(filters).returning(filters.c.number, sort_by_parameter_order=True)
_filters_of = (
    sa.select(*COLUMNS)
    .where(filters.c.subscription_key.in_(sa.bindparam("keys", expanding=True)))
    .order_by(filters.c.number)
)
_one = sa.update(subscriptions).where(subscriptions.c.key == sa.bindparam("key_"))

# The same rules, in the same order, as SubscriptionRow.state.
_c = subscriptions.c
_theirs = filters.alias()
_last = sa.select(sa.func.max(_theirs.c.number)).where(_theirs.c.subscription_key == _c.key).correlate(subscriptions)
_fails = sa.exists().where(filters.c.number == _last.scalar_subquery(), filters.c.failed.is_not(None))
_fails = _fails.correlate(subscriptions)
_state = sa.case(
    (_c.ended.is_not(None), "expired"),
    (_c.disabled.is_not(None), "disabled"),
    (_fails, "failed"),
    (_c.paused, "paused"),
    (_c.pending, "pending"),
    (_c.replaying, "replaying"),
    (_c.suspended.is_not(None), "suspended"),
    else_="active",
)


class CatalogueSubscriptions:
    """The subscriptions of the catalogue."""

    _database: Database

    def create(self, new: NewSubscription) -> SubscriptionRow:
        """Add a subscription, pending until its filter is activated."""
        return self.create_many([new])[0]

    def create_many(self, new: Iterable[NewSubscription]) -> Sequence[SubscriptionRow]:
        """Add subscriptions, all or none of them; returns them in the order given."""
        wanted = [_checked(subscription) for subscription in new]
        time = now()
        made: list[SubscriptionRow] = []
        by_tenant: dict[str, list[NewSubscription]] = {}
        for subscription in wanted:
            by_tenant.setdefault(subscription.tenant, []).append(subscription)
        if not wanted:
            return made
        with self._database.writing(next(iter(by_tenant)) if len(by_tenant) == 1 else ALL_TENANTS) as connection:
            for tenant, theirs in by_tenant.items():
                _refuse_taken_ids(connection, tenant, theirs)
            revision = next_revision(connection)
            touch_domains(connection, dict.fromkeys((each.tenant, each.domain) for each in wanted), revision)
            for some in in_parts(wanted):
                made += _inserted(connection, some, time, revision)
        return made

    def change_filter(
        self, tenant: str, id: str, filter: str, cost: int = 0, *, replay_from: int | None = None
    ) -> FilterRow:
        """Add a new filter to a subscription; the old one is valid until this one is activated.

        With `replay_from`, events from that position on are matched with the new one too.
        """
        plain(filter, "filter")
        with self._database.writing(tenant) as connection:
            found = _required(connection, tenant, id)
            if found["ended"] is not None:
                raise _over(id)
            revision = next_revision(connection)
            row = _filter_values(found, found["key"], filter, replay_from, revision)
            number = connection.execute(_insert_filter, row).scalar_one()
            connection.execute(_one.values(cost=cost), {"key_": found["key"]})
            touch_domains(connection, [(tenant, found["domain"])], revision)
        return FilterRow(number=number, valid_from=None, valid_to=None, **row)

    def fail_filter(self, number: int, position: int, reason: str) -> SubscriptionRow | None:
        """Note that a filter breaks matching, and was left out from a position on; returns its subscription.

        None if it was noted before, or its subscription was deleted.
        """
        failing = sa.update(filters).where(filters.c.number == number, filters.c.failed.is_(None))
        with self._database.writing(ALL_TENANTS) as connection:
            if not connection.execute(failing.values(failed_from=position, failed=reason)).rowcount:
                return None
            owner = sa.select(filters.c.subscription_key).where(filters.c.number == number).scalar_subquery()
            row = connection.execute(sa.select(*_columns).where(_live, _c.key == owner)).mappings().first()
            return None if row is None else _complete(connection, [row])[0]

    def update(self, tenant: str, id: str, **changes: Unpack[SubscriptionChanges]) -> SubscriptionRow:
        """Change what is given of a subscription; None removes a value."""
        with self._database.writing(tenant) as connection:
            found = _required(connection, tenant, id)
            values = _values_of(changes)
            if found["ended"] is not None and "expires" in values:
                raise _over(id)
            differing = {name: value for name, value in values.items() if found[name] != value}
            if differing:
                differing |= {"updated": now(), "revision": found["revision"] + 1}
                connection.execute(_one.values(**differing), {"key_": found["key"]})
            if "labels" in differing:
                connection.execute(sa.delete(labels).where(labels.c.subscription_key == found["key"]))
                _insert_labels(connection, [(found["key"], tenant, changes["labels"])])
            return _complete(connection, [dict(found) | differing])[0]

    def get(self, tenant: str, id: str) -> SubscriptionRow | None:
        """Returns a subscription that was not deleted."""
        with self._database.reading(tenant) as connection:
            found = _found(connection, tenant, id)
            return None if found is None else _complete(connection, [found])[0]

    def subscriptions_by_tenant(self) -> dict[str, tuple[int, int]]:
        """Returns how many subscriptions each tenant has, and what their filters cost."""
        sums = sa.func.count(), sa.func.sum(subscriptions.c.cost)
        wanted = sa.select(subscriptions.c.tenant, *sums).where(_live).group_by(subscriptions.c.tenant)
        with self._database.reading(ALL_TENANTS) as connection:
            return {str(tenant): (int(count), int(cost)) for tenant, count, cost in connection.execute(wanted)}

    def delete(self, tenant: str, id: str, position: int) -> bool:
        """Delete a subscription: it concerns no event from a position on, the log's end. Returns whether it existed.

        Its id may be given to another one then, which has nothing to do with it.
        """
        with self._database.writing(tenant) as connection:
            found = _found(connection, tenant, id)
            if found is None:
                return False
            _end(connection, found, position)
            connection.execute(_one.values(deleted=now(), pending=False), {"key_": found["key"]})
            unanswered = sa.update(jobs).where(jobs.c.subscription_key == found["key"], jobs.c.closed.is_(None))
            connection.execute(unanswered.values(closed=now()))
            connection.execute(sa.delete(labels).where(labels.c.subscription_key == found["key"]))
        return True

    def expire(self, tenant: str, id: str, position: int) -> bool:
        """End a subscription whose time has come; what waits can still be read. Returns whether it was active."""
        with self._database.writing(tenant) as connection:
            found = _found(connection, tenant, id)
            if found is None or found["ended"] is not None:
                return False
            _end(connection, found, position)
            changed = {"ended": now(), "pending": False, "revision": found["revision"] + 1}
            connection.execute(_one.values(**changed), {"key_": found["key"]})
        return True

    def expired(self, now: int, *, limit: int = _EXPIRED_AT_ONCE) -> Sequence[SubscriptionRow]:
        """Returns subscriptions of all tenants whose time has come by now, and that have not ended yet."""
        wanted = sa.select(*_columns).where(_live, _c.ended.is_(None), _c.expires <= now)
        with self._database.reading(ALL_TENANTS) as connection:
            found = connection.execute(wanted.order_by(_c.expires).limit(limit)).mappings().all()
            return _complete(connection, found)

    def webhooks(self, *, after: int = 0, limit: int = 1_000) -> Sequence[SubscriptionRow]:
        """Returns the subscriptions of all tenants that are delivered by webhook, in the order of their keys."""
        wanted = sa.select(*_columns).where(_live, _c.delivery == "webhook", _c.key > after)
        with self._database.reading(ALL_TENANTS) as connection:
            found = connection.execute(wanted.order_by(_c.key).limit(limit)).mappings().all()
            return _complete(connection, found)

    def by_filter(self, numbers: Iterable[int]) -> dict[int, SubscriptionRow]:
        """Returns the subscriptions that these filters belong to, by number, of all tenants; without deleted ones."""
        answer: dict[int, SubscriptionRow] = {}
        with self._database.reading(ALL_TENANTS) as connection:
            for some in in_parts(sorted(set(numbers))):
                owners = sa.select(filters.c.subscription_key).where(filters.c.number.in_(some))
                wanted = sa.select(*_columns).where(_live, _c.key.in_(owners))
                asked = set(some)
                for row in _complete(connection, connection.execute(wanted).mappings().all()):
                    answer |= {filter.number: row for filter in row.filters if filter.number in asked}
        return answer

    def by_key(self, keys: Iterable[int]) -> dict[int, SubscriptionRow]:
        """Returns the subscriptions with these keys, of all tenants; without deleted ones."""
        with self._database.reading(ALL_TENANTS) as connection:
            found: dict[int, SubscriptionRow] = {}
            for some in in_parts(sorted(set(keys))):
                wanted = sa.select(*_columns).where(_live, _c.key.in_(some))
                rows = _complete(connection, connection.execute(wanted).mappings().all())
                found |= {row.key: row for row in rows}
        return found

    def purge(self, tenant: str, domain: str, *, reached: int, revision: int, limit: int = 1_000) -> Sequence[int]:
        """Remove deleted subscriptions that are not needed any more; returns their keys.

        They are not needed if the domain's stream has matched all before the position `reached`, and its index is of
        this `revision` or a later one, so that their filters have left it.
        """
        of_domain = (_c.tenant == tenant) & (_c.domain == domain)
        matters = sa.exists().where(
            filters.c.subscription_key == _c.key,
            (filters.c.valid_to > reached) | (filters.c.revision > revision) | filters.c.valid_to.is_(None),
        )
        wanted = sa.select(_c.key).where(of_domain, _c.deleted.is_not(None), ~matters).order_by(_c.key).limit(limit)
        with self._database.writing(tenant) as connection:
            keys = connection.execute(wanted).scalars().all()
            for some in in_parts(keys):
                connection.execute(sa.delete(subscriptions).where(of_domain, _c.key.in_(some)))
        return keys

    def list(
        self,
        tenant: str,
        *,
        domain: str | None = None,
        label: str | None = None,
        search: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> SubscriptionPage:
        """Returns subscriptions of a tenant, the oldest first.

        `label` is a name, or name=value; `search` a part of the id or the filter, ignoring the case of ASCII letters;
        `after` is `next` of the page before.
        """
        wanted = sa.select(*_columns).where(_live, _c.tenant == tenant)
        if domain is not None:
            wanted = wanted.where(_c.domain == plain(domain, "domain"))
        if label is not None:
            name, equals, value = plain(label, "label").partition("=")
            with_label = sa.select(labels.c.subscription_key).where(labels.c.tenant == tenant, labels.c.name == name)
            wanted = wanted.where(_c.key.in_(with_label.where(labels.c.value == value) if equals else with_label))
        if search:
            wanted = wanted.where(self._contains(_c.id, search) | self._contains(_c.filter, search))
        if state is not None:
            if state not in STATES:
                raise CatalogueError(f"state: '{state}' does not exist; give one of {', '.join(STATES)}")
            wanted = wanted.where(_state == state)
        if after is not None:
            wanted = wanted.where(_c.key > _place(after))
        with self._database.reading(tenant) as connection:
            found = connection.execute(wanted.order_by(_c.key).limit(limit + 1)).mappings().all()
            rows = _complete(connection, found[:limit])
        return SubscriptionPage(rows, str(rows[-1].key) if len(found) > limit else None)

    def _contains(self, column: sa.Column[str], part: str) -> sa.ColumnElement[bool]:
        # With the collation "C", PostgreSQL lowers only A to Z, as SQLite does.
        text = column if self._database.is_sqlite else column.collate("C")
        return sa.func.lower(text).contains(plain(part, "search").translate(_LOWER), autoescape=True)


_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _found(connection: Connection, tenant: str, id: str) -> RowMapping | None:
    if not can_be_kept(id):
        return None
    return connection.execute(_find, {"tenant_": tenant, "id_": id}).mappings().first()


def _required(connection: Connection, tenant: str, id: str) -> Found:
    found = _found(connection, tenant, id)
    if found is None:
        raise CatalogueMissingError(f"subscription: there is no '{id}'")
    return dict(found)


def _checked(new: NewSubscription) -> NewSubscription:
    if new.delivery not in DELIVERIES:
        raise CatalogueError(f"delivery: '{new.delivery}' is not a way to deliver; give one of {', '.join(DELIVERIES)}")
    _check_selection(new.select)
    if new.id is not None and not 0 < len(new.id) <= MAX_ID_LENGTH:
        raise CatalogueError(f"id: has {len(new.id)} characters; give 1 to {MAX_ID_LENGTH}")
    plain(new.filter, "filter")
    for what, text in (("id", new.id), ("url", new.url), ("secret", new.secret)):
        if text is not None:
            plain(text, what)
    _check_labels(new.labels)
    return new


def _check_selection(select: str) -> None:
    if select not in SELECTIONS:
        raise CatalogueError(f"select: '{select}' cannot be selected; give one of {', '.join(SELECTIONS)}")


def _check_labels(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if "=" in plain(name, "label"):
            raise CatalogueError(f"label: '{name}' has '=' in its name; leave it out")
        plain(value, f"label '{name}'")


def _refuse_taken_ids(connection: Connection, tenant: str, new: Sequence[NewSubscription]) -> None:
    ids = [subscription.id for subscription in new if subscription.id is not None]
    twice = [id for id, count in Counter(ids).items() if count > 1]
    taken = twice[0] if twice else None
    for some in in_parts(ids):
        taken = taken or connection.execute(_taken, {"tenant_": tenant, "ids": list(some)}).scalars().first()
    if taken is not None:
        raise CatalogueConflictError(f"subscription: there is a '{taken}' already; give another id, or change that one")


def _inserted(
    connection: Connection, new: Sequence[NewSubscription], time: int, revision: int
) -> Sequence[SubscriptionRow]:
    rows = [
        {
            "id": random_id("sub") if subscription.id is None else subscription.id,
            "tenant": subscription.tenant,
            "domain": subscription.domain,
            "filter": subscription.filter,
            "delivery": subscription.delivery,
            "url": subscription.url,
            "secret": subscription.secret,
            "old_secret": None,
            "old_secret_until": None,
            "select": subscription.select,
            "labels": _written(subscription.labels),
            "created": time,
            "updated": time,
            "expires": subscription.expires,
            "paused": subscription.paused,
            "disabled": None,
            "suspended": None,
            "ended": None,
            "deleted": None,
            "pending": True,
            "replaying": subscription.replay_from is not None,
            "revision": 1,
            "cost": subscription.cost,
        }
        for subscription in new
    ]
    one = len(rows) == 1  # much faster without sorting
    keys = connection.execute(_insert if one else _insert_sorted, rows[0] if one else rows).scalars().all()
    theirs = [
        _filter_values(row, key, subscription.filter, subscription.replay_from, revision)
        for row, key, subscription in zip(rows, keys, new, strict=True)
    ]
    numbers = (
        connection.execute(_insert_filter if one else _insert_filters_sorted, theirs[0] if one else theirs)
        .scalars()
        .all()
    )
    _insert_labels(
        connection,
        [(key, subscription.tenant, subscription.labels) for key, subscription in zip(keys, new, strict=True)],
    )
    return [
        SubscriptionRow(
            **{**row, "key": key, "labels": dict(subscription.labels)},
            filters=[FilterRow(number=number, valid_from=None, valid_to=None, **filter)],
        )
        for row, key, subscription, number, filter in zip(rows, keys, new, numbers, theirs, strict=True)
    ]


def _filter_values(
    subscription: Found, key: int, filter: str, replay_from: int | None, revision: int
) -> dict[str, Any]:
    return {
        "subscription": subscription["id"],
        "subscription_key": key,
        "tenant": subscription["tenant"],
        "domain": subscription["domain"],
        "filter": filter,
        "replay_from": replay_from,
        "revision": revision,
    }


def _insert_labels(connection: Connection, given: Iterable[tuple[int, str, Mapping[str, str]]]) -> None:
    rows = [
        {"subscription_key": key, "tenant": tenant, "name": name, "value": value}
        for key, tenant, theirs in given
        for name, value in theirs.items()
    ]
    if rows:
        connection.execute(sa.insert(labels), rows)


def _values_of(changes: SubscriptionChanges) -> dict[str, Any]:
    values: dict[str, Any] = dict(changes)
    unknown = values.keys() - SubscriptionChanges.__annotations__.keys()
    assert not unknown, f"a subscription has no {unknown} to change"
    if values.get("delivery", DELIVERIES[0]) not in DELIVERIES:
        raise CatalogueError(
            f"delivery: '{values['delivery']}' is not a way to deliver; give one of {', '.join(DELIVERIES)}"
        )
    _check_selection(values.get("select", SELECTIONS[0]))
    for name in ("url", "secret", "old_secret", "disabled", "suspended"):
        if values.get(name) is not None:
            plain(values[name], name)
    if "labels" in changes:
        _check_labels(changes["labels"])
        values["labels"] = _written(changes["labels"])
    return values


def _end(connection: Connection, found: Found, position: int) -> None:
    """End the filters of a subscription at a position, and the replay that it waits for."""
    revision = next_revision(connection)
    end_filters(connection, found["key"], position, revision)
    touch_domains(connection, [(found["tenant"], found["domain"])], revision)
    if found["replaying"] and found["pending"]:
        connection.execute(_one.values(replaying=False), {"key_": found["key"]})  # no job was made yet


def _complete(connection: Connection, found: Sequence[Found]) -> Sequence[SubscriptionRow]:
    """Returns rows of subscriptions with their filters."""
    theirs: dict[int, list[FilterRow]] = {row["key"]: [] for row in found}
    for some in in_parts(list(theirs)):
        for filter in rows_of(connection.execute(_filters_of, {"keys": list(some)})):
            theirs[filter.subscription_key].append(filter)
    return [
        SubscriptionRow(**{**row, "labels": json.loads(row["labels"])}, filters=theirs[row["key"]]) for row in found
    ]


def _written(given: Mapping[str, str]) -> str:
    return json.dumps(dict(given), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _place(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise CatalogueError(f"after: '{after}' is not the `next` of a page")
    return int(after)


def _over(id: str) -> CatalogueConflictError:
    return CatalogueConflictError(f"subscription: '{id}' has expired; make another one")
