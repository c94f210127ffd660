"""Subscriptions: made, found, changed live, paused, ended; each event on one side of every change."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.waiting import until

from tidings.service.data.data_directory import replace_json
from tidings.store.catalogue import Catalogue, NewSubscription


def test_a_new_subscription_says_from_where_its_filter_holds(stocks: Any) -> None:
    last = stocks.publish_many(3)[-1]
    answer = stocks.client.post("/v1/subscriptions", json={"domain": "stocks", "filter": "price < 10"})
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/v1/subscriptions/{made['id']}"
    assert (made["state"], made["filter_from"], made["delivery"], made["start"]) == (
        "active",
        last + 1,
        {"mode": "pull"},
        "latest",
    )
    assert made["id"].startswith("sub_")
    assert stocks.client.get(f"/v1/subscriptions/{made['id']}").json() == made


def test_an_id_that_is_taken_is_a_conflict(stocks: Any) -> None:
    stocks.subscribe(id="mine")
    body = {"domain": "stocks", "filter": "TRUE", "id": "mine"}
    assert stocks.client.post("/v1/subscriptions", json=body).status_code == 409


def test_put_makes_and_replaces(stocks: Any) -> None:
    body = {"domain": "stocks", "filter": "price < 10", "labels": {"team": "a"}}
    assert stocks.client.put("/v1/subscriptions/mine", json=body).status_code == 201
    last = stocks.publish_many(2)[-1]
    again = stocks.client.put("/v1/subscriptions/mine", json={"domain": "stocks", "filter": "price < 20"})
    assert again.status_code == 200
    assert (again.json()["filter"], again.json()["labels"], again.json()["filter_from"]) == ("price < 20", {}, last + 1)
    stocks.describe("other", {"attributes": [{"name": "a", "type": "int"}]})
    moved = stocks.client.put("/v1/subscriptions/mine", json={"domain": "other", "filter": "TRUE"})
    assert (moved.status_code, moved.json()["pointer"]) == (409, "/domain")


def test_a_patch_changes_what_it_names_and_nothing_else(stocks: Any) -> None:
    made = stocks.subscribe("price < 10", labels={"team": "a", "floor": "2"})
    path = f"/v1/subscriptions/{made['id']}"
    kind = {"Content-Type": "application/merge-patch+json"}
    for patch, expected in (
        ({"labels": {"team": "b", "floor": None}}, {"labels": {"team": "b"}}),
        ({"paused": True}, {"paused": True, "state": "paused"}),
        ({"expires": "2099-01-01T00:00:00+01:00"}, {"expires": "2098-12-31T23:00:00Z"}),
        ({"expires": None}, {"expires": None}),
        ({"paused": False}, {"paused": False, "state": "active"}),
        ({"delivery": {"mode": "sse"}}, {"delivery": {"mode": "sse"}}),
        ({"filter": "price < 20"}, {"filter": "price < 20"}),
    ):
        changed = stocks.client.patch(path, json=patch, headers=kind)
        assert changed.status_code == 200, changed.text
        made |= expected
        assert {**changed.json(), "updated": ""} == {**made, "updated": ""}
    assert stocks.client.patch(path, json={"domain": "other"}).json()["pointer"] == "/domain"
    assert stocks.client.patch(path, json={"filter": None}).json()["pointer"] == "/filter"
    assert stocks.client.patch(path, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415


def test_a_changed_filter_gets_the_events_after_the_change_and_the_old_one_those_before(stocks: Any) -> None:
    made = stocks.subscribe("price < 10")
    first = stocks.publish_many(2)
    changed = stocks.client.patch(f"/v1/subscriptions/{made['id']}", json={"filter": "price < 20"}).json()
    second = stocks.publish_many(2)
    assert changed["filter_from"] == second[0]
    row = stocks.catalogue.get(stocks.name, made["id"])
    # A driver has both filters in its index for a while: each matches on both sides of the change.
    for filter in row.filters:
        stocks.load_numbers(first + second, [filter.number])
    pulled = stocks.pull(made["id"], wait=5)
    assert [one["position"] for one in pulled["notifications"]] == first + second


def test_a_deleted_subscription_is_gone_and_its_id_free_for_another(stocks: Any) -> None:
    stocks.subscribe(id="mine")
    positions = stocks.publish_many(1)
    stocks.load(positions, "mine")
    assert stocks.client.delete("/v1/subscriptions/mine").status_code == 204
    assert stocks.client.delete("/v1/subscriptions/mine").status_code == 404
    assert stocks.client.get("/v1/subscriptions/mine").status_code == 404
    stocks.subscribe(id="mine")
    assert stocks.pull("mine")["notifications"] == []


def test_a_subscription_expires_and_what_waits_can_still_be_fetched(stocks: Any) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.3)
    made = stocks.subscribe(expires=soon.isoformat())
    before = stocks.publish_many(1)
    path = f"/v1/subscriptions/{made['id']}"
    until(lambda: stocks.client.get(path).json()["state"] == "expired")
    after = stocks.publish_many(1)
    stocks.load(before + after, made["id"])
    assert [one["position"] for one in stocks.pull(made["id"], wait=2)["notifications"]] == before


def test_nothing_is_delivered_while_paused_and_all_of_it_afterwards(stocks: Any) -> None:
    made = stocks.subscribe(paused=True)
    positions = stocks.publish_many(3)
    stocks.load(positions, made["id"])
    assert stocks.pull(made["id"])["notifications"] == []
    stocks.client.patch(f"/v1/subscriptions/{made['id']}", json={"paused": False})
    assert [one["position"] for one in stocks.pull(made["id"])["notifications"]] == positions


def test_lists_are_paged_and_searched(stocks: Any) -> None:
    for number in range(5):
        stocks.subscribe(f"price < {number}", id=f"s{number}", labels={"team": "ab"[number % 2]}, paused=number == 4)
    stocks.describe("other", {"attributes": [{"name": "a", "type": "int"}]})
    stocks.client.put("/v1/subscriptions/elsewhere", json={"domain": "other", "filter": "a > 0"})

    def ids(**query: Any) -> list[str]:
        found, after = [], None
        while True:
            page = stocks.client.get(
                "/v1/subscriptions", params={**query, **({"after": after} if after else {})}
            ).json()
            found += [one["id"] for one in page["subscriptions"]]
            after = page["next"]
            if after is None:
                return found

    assert ids(limit=2) == ["s0", "s1", "s2", "s3", "s4", "elsewhere"]
    assert ids(domain="stocks", limit=2) == ["s0", "s1", "s2", "s3", "s4"]
    assert ids(label="team=a") == ["s0", "s2", "s4"]
    assert ids(label="team") == ["s0", "s1", "s2", "s3", "s4"]
    assert ids(search="PRICE < 3") == ["s3"]
    assert ids(state="paused") == ["s4"]


def test_a_start_in_the_past_replays_before_anything_is_delivered(stocks: Any) -> None:
    past = stocks.publish_many(4)
    start = {"position": past[1]}
    made = stocks.subscribe(start=start)
    assert (made["state"], made["start"], made["filter_from"]) == ("replaying", start, past[-1] + 1)
    (job,) = stocks.open_jobs()
    assert (job.kind, job.request["from"], job.request["to"]) == ("replay", past[1], past[-1] + 1)
    new = stocks.publish_many(1)
    stocks.load(new, made["id"])  # the stream is faster than the history
    assert stocks.pull(made["id"])["notifications"] == []
    stocks.load(past[1:], made["id"])
    replace_json(stocks.data.answer(job.id), {"done": True, "matches": 3})
    pulled = stocks.pull(made["id"], wait=5)
    assert [one["position"] for one in pulled["notifications"]] == past[1:] + new
    assert stocks.client.get(f"/v1/subscriptions/{made['id']}").json()["state"] == "active"
    assert not stocks.data.answer(job.id).exists()


@pytest.mark.parametrize("start", ["earliest", {"time": "2001-01-01T00:00:00Z"}])
def test_a_start_may_be_the_earliest_or_a_time(stocks: Any, start: Any) -> None:
    stocks.publish_many(2)
    assert stocks.subscribe(start=start)["start"] == {"position": 0}
    future = {"time": "2099-01-01T00:00:00Z"}
    assert stocks.subscribe(start=future)["state"] == "active"


def test_events_of_a_history_that_do_not_fit_their_domain_any_more_are_dead_letters(stocks: Any) -> None:
    past = [*stocks.publish_many(2), *stocks.publish({"symbol": "GAS"})]
    stocks.subscribe("symbol = 'GAS'", id="history", start={"position": past[0]})
    (job,) = stocks.open_jobs()
    stocks.load(past[2:], "history")
    answer = {"done": True, "matches": 1, "misfits": {str(at): "attribute 'price': no text" for at in past[:2]}}
    replace_json(stocks.data.answer(job.id), answer)
    until(lambda: not stocks.open_jobs())
    assert [one["position"] for one in stocks.pull("history")["notifications"]] == past[2:]
    dead = stocks.client.get("/v1/subscriptions/history/dead-letters").json()["dead_letters"]
    assert [one["position"] for one in dead] == past[:2]
    assert dead[0]["reason"].endswith("does not fit its domain as it is now: attribute 'price': no text")


def test_a_history_that_cannot_be_replayed_disables_its_subscription_with_the_reason(stocks: Any) -> None:
    stocks.publish_many(2)
    made = stocks.subscribe(start="earliest")
    (job,) = stocks.open_jobs()
    replace_json(stocks.data.answer(job.id), {"done": False, "kind": "request", "reason": "no such attribute"})
    path = f"/v1/subscriptions/{made['id']}"
    until(lambda: stocks.client.get(path).json()["state"] == "disabled")
    assert "no such attribute" in stocks.client.get(path).json()["disabled"]


def test_a_history_that_keeps_failing_disables_its_subscription_after_some_tries(make_gateway: Any) -> None:
    stocks = make_gateway(replay_pause_seconds=0.0)
    stocks.publish_many(2)
    made = stocks.subscribe(start="earliest")
    (job,) = stocks.open_jobs()
    answer, tries = stocks.data.answer(job.id), 0

    def is_disabled() -> bool:
        nonlocal tries
        is_wanted = not answer.exists()  # before the state: the gateway removes the last one after it has changed it
        state = stocks.catalogue.get(stocks.name, made["id"]).state
        if state == "replaying" and is_wanted:  # as the driver does
            tries += 1
            replace_json(answer, {"done": False, "kind": "service", "reason": "a worker died"})
        return bool(state == "disabled")

    until(is_disabled)
    assert tries == 5
    assert "a worker died" in stocks.client.get(f"/v1/subscriptions/{made['id']}").json()["disabled"]


def test_what_a_crash_left_half_made_is_finished_at_the_next_start(alone: Any) -> None:
    alone.publish_many(2)
    with Catalogue(alone.data.catalogue) as catalogue:
        catalogue.create(NewSubscription(tenant="default", domain="stocks", filter="TRUE", id="half"))
    assert alone.client.get("/v1/subscriptions/half").json()["state"] == "pending"
    alone.restart()
    half = alone.client.get("/v1/subscriptions/half").json()
    assert (half["state"], half["filter_from"]) == ("active", 2)


def test_a_domain_keeps_what_filters_use_and_stays_while_it_has_subscriptions(stocks: Any) -> None:
    stocks.subscribe("volume > 3", id="loud")
    fewer = {"attributes": [{"name": "price", "type": "double"}]}
    refused = stocks.client.put("/v1/domains/stocks", json=fewer)
    assert refused.status_code == 409
    assert "loud" in refused.json()["detail"]
    assert stocks.client.delete("/v1/domains/stocks").status_code == 409
    stocks.client.delete("/v1/subscriptions/loud")
    assert stocks.client.put("/v1/domains/stocks", json=fewer).status_code == 200
    assert [one["name"] for one in stocks.client.get("/v1/domains").json()["domains"]] == ["stocks"]
    assert stocks.client.delete("/v1/domains/stocks").status_code == 204
    assert stocks.client.get("/v1/domains/stocks").status_code == 404


def test_decimals_of_a_domain_are_kept_as_they_were_written(gateway: Any) -> None:
    attribute = {"name": "paid", "type": "decimal(10,2)", "min": "0.10", "precision": "0.05", "unit": "EUR"}
    gateway.describe("bills", {"attributes": [attribute], "indices": [["paid"]]})
    found = gateway.client.get("/v1/domains/bills").json()
    assert found["attributes"] == [attribute]
    assert found["indices"] == [["paid"]]
    assert found["inferred"] is False
