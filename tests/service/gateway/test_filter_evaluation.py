"""Subscriptions that want the nodes that their paths select: delivered in every way in the event's place."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.service.gateway.test_webhooks import Receiver
from tests.waiting import until

from tidings.client import Client
from tidings.service.data.data_directory import replace_json

ATOM = "http://www.w3.org/2005/Atom"
NEWS = {"attributes": [{"name": "document", "type": "string"}, {"name": "lang", "type": "string"}]}
FILTER = "xpath_boolean(document, '//item[author]/link')"
ITEM = "<rss><item><author>Liu</author><link>a&amp;b</link>\n<link>c</link></item></rss>"
NODES = ["<link>a&amp;b</link>", "<link>c</link>"]


@pytest.fixture
def news(gateway: Any) -> Any:
    gateway.describe("news", NEWS)
    return gateway


def subscribe(gateway: Any, filter: str = FILTER, **fields: Any) -> Any:
    return gateway.client.post(
        "/v1/subscriptions", json={"domain": "news", "filter": filter, "select": "nodes", **fields}
    )


def publish(gateway: Any, *documents: str) -> list[int]:
    answer = gateway.client.post("/v1/domains/news/events", json=[{"document": one} for one in documents])
    positions: list[int] = answer.json()["positions"]
    return positions


def test_nodes_are_pulled_and_streamed_in_place_of_the_event(news: Any) -> None:
    made = subscribe(news).json()
    assert made["select"] == "nodes"
    (position,) = publish(news, ITEM)
    news.load([position], made["id"])
    wanted = {"position": position, "nodes": NODES}
    assert news.pull(made["id"])["notifications"] == [wanted]
    with news.client.stream("GET", f"/v1/subscriptions/{made['id']}/stream") as stream:
        data = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert json.loads(data.removeprefix("data:")) == wanted


def test_a_webhook_is_sent_the_nodes(news: Any) -> None:
    receiver = Receiver()
    try:
        made = subscribe(news, delivery={"mode": "webhook", "url": receiver.url}).json()
        (position,) = publish(news, ITEM)
        news.load([position], made["id"])
        _, body = until(lambda: receiver.requests)[0]
    finally:
        receiver.close()
    assert json.loads(body)["data"] == {
        "subscription": made["id"],
        "domain": "news",
        "position": position,
        "nodes": NODES,
    }


def test_what_was_dead_comes_again_as_nodes(news: Any) -> None:
    made = subscribe(news).json()["id"]
    positions = publish(news, ITEM, ITEM)
    news.load(positions, made, max_waiting=1)
    news.client.post(f"/v1/subscriptions/{made}/dead-letters:redrive", json={})
    assert [one["nodes"] for one in news.pull(made)["notifications"]] == [NODES]


def test_each_event_has_the_nodes_of_the_filter_that_was_in_force(news: Any) -> None:
    made = subscribe(news).json()["id"]
    before = publish(news, ITEM)
    news.load(before, made)
    news.client.patch(f"/v1/subscriptions/{made}", json={"filter": "xpath_boolean(document, '//author/text()')"})
    after = publish(news, ITEM)
    news.load(after, made)
    assert [one["nodes"] for one in news.pull(made)["notifications"]] == [NODES, ["Liu"]]


def test_a_history_that_is_replayed_comes_as_nodes_by_the_filter_that_asked_for_it(news: Any) -> None:
    past = publish(news, ITEM, "<rss/>", ITEM)
    made = subscribe(news, start={"position": past[0]}).json()
    (job,) = news.open_jobs()
    assert (job.request["from"], job.request["to"]) == (past[0], past[-1] + 1)
    news.load([past[0], past[2]], made["id"])
    replace_json(news.data.answer(job.id), {"done": True, "matches": 2})
    assert news.pull(made["id"], wait=5)["notifications"] == [
        {"position": position, "nodes": NODES} for position in (past[0], past[2])
    ]
    news.client.patch(f"/v1/subscriptions/{made['id']}", json={"filter": "xpath_boolean(document, '//author/text()')"})
    after = publish(news, ITEM)
    news.load(after, made["id"])
    assert [one["nodes"] for one in news.pull(made["id"])["notifications"]] == [NODES, NODES, ["Liu"]]


def test_what_is_delivered_may_change_and_be_the_event_again(news: Any) -> None:
    made = subscribe(news, select="document").json()
    assert made["select"] == "document"
    positions = publish(news, ITEM)
    news.load(positions, made["id"])
    path = f"/v1/subscriptions/{made['id']}"
    for patch, what in [({"select": "nodes"}, "nodes"), ({"select": None}, "event"), ({"select": "nodes"}, "nodes")]:
        assert news.client.patch(path, json=patch).status_code == 200
        assert what in news.pull(made["id"])["notifications"][0]
    whole = {"domain": "news", "filter": FILTER}
    assert news.client.put(path, json=whole).json()["select"] == "document"


def test_nodes_in_a_namespace_are_selected_by_a_prefix_that_the_filter_explains(news: Any) -> None:
    filter = f"xpath_boolean(document, '/atom:feed/atom:entry/@n', map('atom', '{ATOM}'))"
    made = subscribe(news, filter).json()["id"]
    positions = publish(news, f'<feed xmlns="{ATOM}"><entry n="1"/><entry n="2"/></feed>')
    news.load(positions, made)
    assert news.pull(made)["notifications"][0]["nodes"] == ["1", "2"]
    wrong = subscribe(news, "xpath_boolean(document, '/atom:feed')")
    assert (wrong.status_code, wrong.json()["column"]) == (422, 27)
    assert "unknown prefix 'atom'" in wrong.json()["detail"]


def test_nodes_are_refused_where_no_path_selects_any(news: Any) -> None:
    for filter in ("lang = 'en'", f"NOT {FILTER}"):
        answer = subscribe(news, filter)
        assert (answer.status_code, answer.json()["pointer"]) == (422, "/select")
    made = subscribe(news).json()["id"]
    answer = news.client.patch(f"/v1/subscriptions/{made}", json={"filter": "lang = 'en'"})
    assert (answer.status_code, answer.json()["pointer"]) == (422, "/select")
    assert news.client.get(f"/v1/subscriptions/{made}").json()["filter"] == FILTER
    for value in ("node", 1, ["nodes"]):
        assert subscribe(news, select=value).json()["pointer"] == "/select"


def test_the_client_has_the_nodes(news: Any) -> None:
    with Client(news.url, token=news.token) as client:
        made = client.subscribe("news", FILTER, select="nodes")
        assert made.select == "nodes"
        positions = client.publish_many("news", [{"document": ITEM}])
        news.load(positions, made.id)
        (notification,) = client.pull(made.id).notifications
        assert (notification.nodes, notification.event) == (tuple(NODES), {})
        assert client.change(made.id, select="document").select == "document"
        assert client.pull(made.id).notifications[0].nodes is None
        assert client.replace_subscription(made.id, "news", FILTER, select="nodes").select == "nodes"
