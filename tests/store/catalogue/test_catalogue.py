"""The catalogue keeps what it was given, finds it again, and shows a tenant nothing of another: in both databases."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tidings.store.catalogue import (
    Catalogue,
    CatalogueChangedError,
    CatalogueConflictError,
    CatalogueError,
    CatalogueMissingError,
    NewSubscription,
)
from tidings.store.catalogue.database import AT_ONCE

from .subscribed import active, ids, new

# Domains and revisions.


def test_a_domain_can_be_changed_and_the_same_description_changes_nothing(catalogue: Catalogue) -> None:
    first = catalogue.put_domain("ada", "flights", "1", inferred=True)
    assert (first.key, first.revision, catalogue.revision()) == ("ada.flights", 1, 1)
    assert catalogue.put_domain("ada", "flights", "1", inferred=True) == first
    assert catalogue.put_domain("ada", "flights", "2", inferred=True, replace=False) == first
    confirmed = catalogue.put_domain("ada", "flights", "1", inferred=False)
    assert (confirmed.inferred, confirmed.revision, confirmed.created) == (False, 2, first.created)
    assert catalogue.domain("ada", "flights") == confirmed
    assert catalogue.domain("eve", "flights") is None


def test_a_definition_checked_at_an_older_revision_is_not_written(known: Catalogue) -> None:
    revision = known.revision("ada", "flights")
    with pytest.raises(CatalogueChangedError):
        known.put_domain("ada", "flights", "2", inferred=False, at_revision=0)
    known.create(new())
    with pytest.raises(CatalogueChangedError):
        known.put_domain("ada", "flights", "2", inferred=False, at_revision=revision)
    now = known.revision("ada", "flights")
    assert known.put_domain("ada", "flights", "2", inferred=False, at_revision=now).definition == "2"
    assert known.put_domain("ada", "other", "1", inferred=False, at_revision=0).revision > now


def test_domains_come_by_tenant_and_name(catalogue: Catalogue) -> None:
    for tenant, name in (("eve", "a"), ("ada", "b_"), ("ada", "b-"), ("ada", "ba")):
        catalogue.put_domain(tenant, name, "", inferred=False)
    assert [row.key for row in catalogue.domains()] == ["ada.b-", "ada.b_", "ada.ba", "eve.a"]
    assert [row.name for row in catalogue.domains("eve")] == ["a"]


def test_invalid_names_are_refused(catalogue: Catalogue) -> None:
    for name in ("", "Flights", "a.b", "-a", "a" * 64, "../x", "é", "a\n", "a\0"):
        with pytest.raises(CatalogueError, match=r"(?s)domain: '.*' is not a valid name"):
            catalogue.put_domain("ada", name, "", inferred=False)
        with pytest.raises(CatalogueError, match=r"(?s)tenant: '.*' is not a valid name"):
            catalogue.create_token(name)
    assert catalogue.revision() == 0


def test_texts_that_cannot_be_stored_are_not_found(known: Catalogue) -> None:
    for text in ("a\0", "\ud800"):
        assert known.domain("ada", text) is known.get("ada", text) is known.job(text) is None
        assert not known.delete("ada", text, 1)
        assert not known.delete_domain("ada", text)
        assert not known.revoke_token("ada", text)
        with pytest.raises(CatalogueMissingError):
            known.update("ada", text, paused=True)
        for asked in ("domain", "label", "search"):
            with pytest.raises(CatalogueError, match=f"{asked}: contains"):
                ids(known, **{asked: text})


def test_a_domain_with_subscriptions_stays(known: Catalogue) -> None:
    active(known, new("cheap"))
    with pytest.raises(CatalogueConflictError, match="'flights' has 1 subscriptions"):
        known.delete_domain("ada", "flights")
    known.delete("ada", "cheap", 3)
    before = known.revision("ada", "flights")
    assert known.delete_domain("ada", "flights")
    assert not known.delete_domain("ada", "flights")
    assert known.revision("ada", "flights") == 0
    assert known.changed_filters("ada", "flights", 0) == []
    assert known.put_domain("ada", "flights", "", inferred=False).revision > before


def test_the_revision_of_a_domain_is_that_of_its_last_change_and_no_others(known: Catalogue) -> None:
    of_eve = known.revision("eve", "flights")
    made = known.create(new("cheap"))
    assert made.filters[0].revision == known.revision("ada", "flights") == known.revision() == of_eve + 1
    row = known.activate(made.filters[0].number, 7)
    assert row.revision == known.revision("ada", "flights") == of_eve + 2
    assert known.changed_filters("ada", "flights", of_eve + 1) == [row]
    assert known.changed_filters("ada", "flights", of_eve + 2) == []
    known.update("ada", "cheap", paused=True)
    assert known.revision() == of_eve + 2, "what concerns no filter needs no new index"
    assert known.revision("eve", "flights") == of_eve


# Subscriptions.


def test_a_subscription_is_found_as_it_was_made(known: Catalogue) -> None:
    asked = new(
        "cheap", delivery="webhook", url="https://example.org/ü", secret="whsec_x", labels={"team": "ops", "a": ""}
    )
    made = known.create(asked)
    assert made == known.get("ada", "cheap")
    assert (made.state, made.filter_from, made.labels, made.secret) == ("pending", None, asked.labels, "whsec_x")
    assert "whsec_x" not in repr(made) + repr(asked)
    known.activate(made.filters[0].number, 12)
    found = known.get("ada", "cheap")
    assert found is not None
    assert (found.state, found.filter_from, found.revision) == ("active", 12, 1)


def test_an_id_is_made_if_none_is_given(known: Catalogue) -> None:
    made = known.create_many([new() for _ in range(3)])
    assert len({row.id for row in made}) == 3
    assert all(row.id.startswith("sub_") and len(row.id) == 20 for row in made)


def test_many_are_made_in_the_order_given_or_none_is(known: Catalogue) -> None:
    more_than_go_together = AT_ONCE + 3
    wanted = [new(f"s{n}", f"price < {n}", labels={"n": str(n)}) for n in range(more_than_go_together)]
    made = known.create_many(wanted)
    assert [(row.id, row.filter, row.filters[0].filter) for row in made] == [
        (each.id, each.filter, each.filter) for each in wanted
    ]
    rows = known.activate_many((row.filters[0].number for row in made), 5)
    assert [row.subscription for row in rows] == [each.id for each in wanted]
    assert {(row.valid_from, row.revision) for row in rows} == {(5, known.revision())}
    assert known.filters_of("ada", "flights") == rows
    with pytest.raises(CatalogueConflictError, match="there is a 's7' already"):
        known.create_many([new("t1"), new("s7")])
    with pytest.raises(CatalogueConflictError, match="there is a 't1' already"):
        known.create_many([new("t1"), new("t1")])
    assert known.get("ada", "t1") is None
    assert known.create_many([]) == []


def test_the_id_of_one_deleted_can_be_given_again_and_is_another(known: Catalogue) -> None:
    first = active(known, new("cheap"))
    assert known.delete("ada", "cheap", 4)
    assert not known.delete("ada", "cheap", 5)
    second = active(known, new("cheap"), 6)
    assert second.key > first.key
    assert [row.valid_from for row in second.filters] == [6]


def test_invalid_subscriptions_are_refused_and_change_nothing(known: Catalogue) -> None:
    before = known.revision()
    for asked, problem in (
        (new(filter="a = '\0'"), "filter: contains the character NUL"),
        (new(filter="a = '\ud800'"), "filter: contains half of a surrogate pair"),
        (new(""), "id: has 0 characters"),
        (new("x" * 256), "id: has 256 characters"),
        (new(delivery="pigeon"), "delivery: 'pigeon' is not a way"),
        (new(labels={"a=b": "c"}), "label: 'a=b' has '='"),
        (NewSubscription("ada", "trains", "x = 1"), "domain: 'trains' does not exist"),
        (NewSubscription("mallory", "flights", "x = 1"), "domain: 'flights' does not exist"),
    ):
        with pytest.raises(CatalogueError, match=problem):
            known.create_many([new("fine"), asked])
        assert known.revision() == before
        assert ids(known) == []


def test_an_update_changes_what_is_given_alone(known: Catalogue) -> None:
    before = active(known, new("cheap", expires=5, labels={"a": "1", "b": "2"}))
    known.update("ada", "cheap", paused=True, labels={"b": "3"})
    after = known.get("ada", "cheap")
    assert after is not None
    assert (after.state, after.labels, after.expires, after.revision) == ("paused", {"b": "3"}, 5, 2)
    assert (ids(known, label="a"), ids(known, label="b=3"), ids(known, label="b=2")) == ([], ["cheap"], [])
    assert known.update("ada", "cheap", expires=None).expires is None
    assert known.update("ada", "cheap", expires=None).revision == 3, "what is the same is no change"
    known.update("ada", "cheap", disabled="the receiver is gone", delivery="webhook", url="https://example.org")
    found = known.update("ada", "cheap")
    assert (found.state, found.delivery, found.filters) == ("disabled", "webhook", before.filters)
    with pytest.raises(CatalogueMissingError, match="there is no 'dear'"):
        known.update("ada", "dear", paused=True)


def test_expiry_ends_a_subscription_that_can_still_be_read(known: Catalogue) -> None:
    active(known, new("soon", expires=100), 3)
    active(known, new("later", expires=200), 3)
    active(known, new("never"), 3)
    assert [row.id for row in known.expired(99)] == []
    assert [row.id for row in known.expired(100)] == ["soon"]
    assert [row.id for row in known.expired(500)] == ["soon", "later"]
    assert known.expire("ada", "soon", 9)
    assert not known.expire("ada", "soon", 10)
    found = known.get("ada", "soon")
    assert found is not None
    assert (found.state, [(row.valid_from, row.valid_to) for row in found.filters]) == ("expired", [(3, 9)])
    assert [row.id for row in known.expired(150)] == []
    with pytest.raises(CatalogueConflictError, match="has expired"):
        known.change_filter("ada", "soon", "price < 5")
    with pytest.raises(CatalogueConflictError, match="has expired"):
        known.update("ada", "soon", expires=None)
    assert known.delete("ada", "soon", 20)
    assert [row.valid_to for row in known.changed_filters("ada", "flights", 0) if row.subscription == "soon"] == [9]


def test_pages_have_everything_once_and_in_order(known: Catalogue) -> None:
    known.create_many([new(f"s{number}") for number in range(7)])
    seen, after = [], None
    while True:
        page = known.list("ada", limit=3, after=after)
        seen.append([row.id for row in page.subscriptions])
        if page.next is None:
            break
        after = page.next
        known.delete("ada", seen[-1][-1], 1)  # what is removed meanwhile moves nothing
    assert seen == [["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"]]
    assert known.list("ada", limit=5).next is None
    for bad in ("x", "-1", "9" * 30, "²"):
        with pytest.raises(CatalogueError, match="is not the `next` of a page"):
            known.list("ada", after=bad)


def test_subscriptions_are_found_by_what_they_have(known: Catalogue) -> None:
    known.put_domain("ada", "trains", "", inferred=False)
    active(known, new("cheap-JFK", "price < 100 AND origin LIKE '50%\\_'", labels={"team": "ops"}))
    active(known, NewSubscription("ada", "trains", "ÄRGER = 1", id="late", labels={"team": "dev", "x": ""}))
    known.create(new("draft", "PRICE > 1"))
    active(known, new("hers", "price < 100", tenant="eve", labels={"team": "ops"}))
    table: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["cheap-JFK", "late", "draft"]),
        ({"domain": "trains"}, ["late"]),
        ({"domain": "boats"}, []),
        ({"label": "team"}, ["cheap-JFK", "late"]),
        ({"label": "team=ops"}, ["cheap-JFK"]),
        ({"label": "x="}, ["late"]),
        ({"label": "team="}, []),
        ({"search": "price"}, ["cheap-JFK", "draft"]),
        ({"search": "jfk"}, ["cheap-JFK"]),
        ({"search": "%"}, ["cheap-JFK"]),
        ({"search": "\\_"}, ["cheap-JFK"]),
        ({"search": "0_"}, []),
        ({"search": "Ärger"}, ["late"]),
        ({"search": "ärger"}, []),
        ({"search": "'); DROP TABLE filters; --"}, []),
        ({"state": "pending"}, ["draft"]),
        ({"state": "active"}, ["cheap-JFK", "late"]),
        ({"state": "active", "search": "price", "label": "team"}, ["cheap-JFK"]),
    ]
    for asked, expected in table:
        assert ids(known, **asked) == expected, asked
    with pytest.raises(CatalogueError, match="state: 'happy' does not exist; give one of pending, active"):
        known.list("ada", state="happy")


def test_states_are_found_as_they_are_shown(known: Catalogue) -> None:
    known.create(new("s-pending"))
    known.create(new("s-pending-replay", replay_from=0))
    active(known, new("s-active"))
    active(known, new("s-replaying", replay_from=0), 5)
    for id in ("s-paused", "s-disabled", "s-expired"):
        active(known, new(id, replay_from=0, paused=True), 5)
    known.update("ada", "s-disabled", disabled="410")
    known.update("ada", "s-expired", disabled="410")
    known.expire("ada", "s-expired", 9)
    shown = {row.id: row.state for row in known.list("ada").subscriptions}
    assert set(shown.values()) == {"pending", "active", "replaying", "paused", "disabled", "expired"}
    for state in set(shown.values()):
        assert ids(known, state=state) == [id for id, theirs in shown.items() if theirs == state]


def test_whose_a_filter_is(known: Catalogue) -> None:
    first, second = active(known, new("a")), active(known, new("b", tenant="eve"))
    changed = known.change_filter("ada", "a", "price < 3").number
    owners = known.by_filter([first.filters[0].number, changed, second.filters[0].number, 999_999])
    assert {number: (row.tenant, row.id) for number, row in owners.items()} == {
        first.filters[0].number: ("ada", "a"),
        changed: ("ada", "a"),
        second.filters[0].number: ("eve", "b"),
    }


def test_webhooks_of_all_tenants_come_in_pages(known: Catalogue) -> None:
    made = [active(known, new(f"w{n}", tenant=tenant, delivery="webhook")) for n, tenant in enumerate(("ada", "eve"))]
    active(known, new("pulled"))
    assert known.webhooks() == made
    assert known.webhooks(after=made[0].key) == made[1:]
    assert known.webhooks(limit=1) == made[:1]


def test_what_was_deleted_is_removed_only_when_the_index_is_past_it(known: Catalogue) -> None:
    gone, stays = active(known, new("gone"), 2), active(known, new("stays"), 2)
    known.delete("ada", "gone", 10)
    last = known.revision("ada", "flights")
    assert known.purge("ada", "flights", reached=9, revision=last) == []
    assert known.purge("ada", "flights", reached=10, revision=last - 1) == []
    assert known.purge("eve", "flights", reached=10, revision=last) == []
    assert known.purge("ada", "flights", reached=10, revision=last) == [gone.key]
    assert [row.subscription_key for row in known.changed_filters("ada", "flights", 0)] == [stays.key]
    assert known.create(new()).filters[0].number > stays.filters[0].number


# History, jobs and tokens.


def test_a_subscription_with_history_waits_for_its_replay(known: Catalogue) -> None:
    made = known.create(new("old", replay_from=3))
    assert known.open_jobs() == []
    row = known.activate(made.filters[0].number, 8)
    assert row.deliver_from == 3
    (job,) = known.open_jobs()
    wanted = {
        "number": row.number,
        "domain": "flights",
        "filter": "price < 100",
        "subscription": "old",
        "from": 3,
        "to": 8,
    }
    assert (job.kind, job.tenant, job.request) == ("replay", "ada", wanted)
    known.activate(row.number, 8)
    assert len(known.open_jobs()) == 1
    assert ids(known, state="replaying") == ["old"]
    assert known.close_job(job.id, {"matches": 2})
    assert not known.close_job(job.id)
    assert ids(known, state="active") == ["old"]
    closed = known.job(job.id)
    assert closed is not None
    assert (closed.answer, known.open_jobs()) == ({"matches": 2}, [])


def test_a_subscription_without_history_does_not_wait(known: Catalogue) -> None:
    active(known, new("empty", replay_from=8), 8)
    assert known.open_jobs() == []
    assert ids(known, state="active") == ["empty"]
    active(known, new("gone", replay_from=1), 8)
    known.delete("ada", "gone", 9)
    assert known.open_jobs() == []


def test_jobs_come_in_their_order_and_to_their_tenant(catalogue: Catalogue) -> None:
    first = catalogue.add_job("backtest", "ada", {"filter": "a = '\0é'", "n": 2**62})
    second = catalogue.add_job("backtest", "eve", {})
    assert [job.id for job in catalogue.open_jobs()] == [first, second]
    found = catalogue.job(first, "ada")
    assert found is not None
    assert found.request == {"filter": "a = '\0é'", "n": 2**62}
    assert catalogue.job(first, "eve") is None
    assert catalogue.job("job_x") is None
    catalogue.close_job(first, {"count": 1})
    assert [job.id for job in catalogue.open_jobs()] == [second]
    assert catalogue.forget_jobs(found.created) == 0
    assert catalogue.forget_jobs(found.created + 10**9) == 1
    assert catalogue.job(first) is None


def test_tokens_are_known_by_their_hash_until_they_are_revoked(catalogue: Catalogue) -> None:
    secret, other = catalogue.create_token("ada", "laptop"), catalogue.create_token("eve")
    assert secret.startswith("tdg_")
    assert len(secret) == 4 + 43
    assert (catalogue.tenant_of(secret), catalogue.tenant_of(other)) == ("ada", "eve")
    for wrong in ("", "tdg_", secret[:-1], secret + "x", secret.upper(), "tdg_\ud800", "x" + secret):
        assert catalogue.tenant_of(wrong) is None
    (row,) = catalogue.tokens("ada")
    assert (row.tenant, row.label) == ("ada", "laptop")
    assert not catalogue.revoke_token("eve", row.id)
    assert catalogue.revoke_token("ada", row.id)
    assert (catalogue.tenant_of(secret), catalogue.tenant_of(other)) == (None, "eve")


# Tenants.


def test_a_tenant_neither_sees_nor_changes_what_is_anothers(known: Catalogue) -> None:
    hers = active(known, new("cheap", "price < 1", tenant="eve", labels={"team": "ops"}))
    assert known.get("ada", "cheap") is None
    assert ids(known) == ids(known, label="team") == ids(known, search="price") == []
    assert not known.delete("ada", "cheap", 9)
    assert not known.expire("ada", "cheap", 9)
    for refused in (
        lambda: known.update("ada", "cheap", paused=True),
        lambda: known.change_filter("ada", "cheap", "price < 2"),
    ):
        with pytest.raises(CatalogueMissingError, match="there is no 'cheap'"):
            refused()
    assert known.filters_of("ada", "flights") == known.changed_filters("ada", "flights", 0) == []
    his = active(known, new("cheap", "price < 3"))  # the same id, and another subscription
    assert known.delete("ada", "cheap", 9)
    assert (known.get("eve", "cheap"), his.key != hers.key) == (hers, True)


def test_postgresql_itself_shows_a_transaction_the_rows_of_its_tenant_alone(postgresql: Any) -> None:
    url = postgresql.new_database()
    with Catalogue(url) as catalogue:
        for tenant in ("ada", "eve"):
            catalogue.put_domain(tenant, "flights", "", inferred=False)
            active(catalogue, new("cheap", tenant=tenant, labels={"a": "b"}, replay_from=0), 3)
            catalogue.create_token(tenant)
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    tables = ("domains", "subscriptions", "labels", "filters", "tokens", "jobs")
    with engine.begin() as connection:
        for tenant, count in (("ada", 1), ("eve", 1), ("mallory", 0), ("", 0), ("*", 2)):
            connection.execute(sa.text("SELECT set_config('tidings.tenant', :tenant, true)"), {"tenant": tenant})
            for table in tables:
                assert connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one() == count, table
    engine.dispose()


def test_a_missing_number_is_refused_and_changes_nothing(known: Catalogue) -> None:
    made = known.create(new())
    with pytest.raises(CatalogueMissingError, match="none with the number 999"):
        known.activate_many([made.filters[0].number, 999], 4)
    assert known.unfinished() == made.filters


def test_what_is_delivered_of_events_is_kept_and_changed(known: Catalogue) -> None:
    assert known.create(new("a")).select == "document"
    assert known.create(new("b", select="nodes")).select == "nodes"
    assert known.update("ada", "a", select="nodes").select == "nodes"
    for change in (lambda: known.create(new(select="all")), lambda: known.update("ada", "a", select="all")):
        with pytest.raises(CatalogueError, match="select: 'all' cannot be selected; give one of document, nodes"):
            change()


def test_the_extent_counts_deleted_rows_too(known: Catalogue) -> None:
    assert known.extent().last_position == -1
    made = active(known, new("cheap"), 4)
    active(known, new("dear"), 7)
    found = known.extent()
    assert (found.last_filter, found.last_subscription) == (made.filters[0].number + 1, made.key + 1)
    assert (found.last_position, found.domains) == (7, {"ada.flights", "eve.flights"})
    known.delete("ada", "dear", 9)
    known.purge("ada", "flights", reached=20, revision=known.revision())
    assert known.extent().last_filter == found.last_filter
    assert known.extent().last_subscription == found.last_subscription
