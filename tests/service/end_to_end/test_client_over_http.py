"""The Python client against a real gateway, over real HTTP: each understands what the other means."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tidings import Attribute, Domain
from tidings.client import AsyncClient, Client, Retries, ServiceError
from tidings.store.catalogue import NewSubscription

STOCKS = Domain(
    "stocks",
    [
        Attribute("symbol", "string"),
        Attribute("price", "double", min=0),
        Attribute("volume", "bigint"),
        Attribute("paid", "decimal(10,2)"),
    ],
)


@pytest.fixture
def client(gateway: Any) -> Iterator[Client]:
    with Client(gateway.url, token=gateway.token, retries=Retries(for_seconds=5)) as made:
        made.put_domain("stocks", STOCKS)
        yield made


def test_a_domain_comes_back_as_it_was_put(client: Client) -> None:
    assert client.domain("stocks").domain == STOCKS
    assert not client.domain("stocks").inferred
    assert [one.name for one in client.domains()] == ["stocks"]
    client.publish("quotes", {"price": 8.40})
    assert client.domain("quotes").inferred
    confirmed = client.put_domain("quotes", client.domain("quotes").domain)
    assert not confirmed.inferred
    client.delete_domain("quotes")
    with pytest.raises(ServiceError, match="404"):
        client.domain("quotes")


def test_events_are_published_once_whole_and_exact(client: Client) -> None:
    position = client.publish("stocks", {"symbol": "OIL", "paid": Decimal("0.10")}, id="7", source="/test")
    assert client.publish("stocks", {"symbol": "OIL", "paid": Decimal("0.10")}, id="7", source="/test") == position
    with pytest.raises(ServiceError) as caught:
        client.publish("stocks", {"symbol": "TEA"}, id="7", source="/test")
    assert caught.value.status == 409
    many = client.publish_many("stocks", [{"volume": 2**53 + 1 + number} for number in range(25)], batch_events=10)
    assert many == list(range(position + 1, position + 26))
    assert client.event_matches(many[0]).event["data"] == {"volume": 2**53 + 1}


def test_an_event_that_does_not_fit_is_refused_with_its_place(client: Client) -> None:
    with pytest.raises(ServiceError) as caught:
        client.publish_many("stocks", [{"price": 1}, {"price": "dear"}])
    assert 400 <= caught.value.status < 500
    assert caught.value.pointer is not None
    assert caught.value.pointer.startswith("/1")
    assert "price" in str(caught.value)


def test_subscriptions_are_made_found_changed_and_removed(client: Client) -> None:
    position = client.publish("stocks", {"price": 1})
    made = client.subscribe("stocks", "price > 3", labels={"team": "oil"}, expires=dt.timedelta(hours=1), paused=True)
    assert (made.state, made.mode, made.labels, made.filter_from) == ("paused", "pull", {"team": "oil"}, position + 1)
    assert client.resume(made.id).state == "active"
    assert client.change(made.id, filter="price > 4", labels={"team": None}, expires=None).filter == "price > 4"
    assert client.subscription(made.id).labels == {}
    assert client.subscription(made.id).expires is None
    client.replace_subscription("named", "stocks", "TRUE", mode="sse", labels={"a": "b"})
    assert client.replace_subscription("named", "stocks", "price < 1", mode="sse").filter == "price < 1"
    others = {client.subscribe("stocks", f"price > {number}").id for number in range(3)}
    assert {one.id for one in client.subscriptions(domain="stocks")} == {made.id, "named", *others}
    assert [one.id for one in client.subscriptions(search="price < 1")] == ["named"]
    client.delete("named")
    with pytest.raises(ServiceError, match="404"):
        client.subscription("named")
    with pytest.raises(ServiceError) as caught:
        client.subscribe("stocks", "TRUE", id=made.id)
    assert caught.value.status == 409


def test_more_subscriptions_than_a_page_holds_are_all_listed(gateway: Any, client: Client) -> None:
    made = gateway.catalogue.create_many([NewSubscription(gateway.name, "stocks", "TRUE") for _ in range(105)])
    gateway.catalogue.activate_many((row.filters[0].number for row in made), gateway.end)
    assert {one.id for one in client.subscriptions()} == {row.id for row in made}


def test_a_wrong_filter_is_told_with_its_column(client: Client) -> None:
    with pytest.raises(ServiceError) as caught:
        client.subscribe("stocks", "prise > 3")
    assert (caught.value.status, caught.value.pointer, caught.value.column) == (422, "/filter", 1)
    assert "did you mean 'price'?" in caught.value.detail


def test_notifications_are_pulled_acknowledged_and_streamed(gateway: Any, client: Client) -> None:
    made = client.subscribe("stocks", "TRUE")
    positions = client.publish_many("stocks", [{"symbol": "Zürich", "volume": number} for number in range(7)])
    gateway.load(positions, made.id)
    first = client.pull(made.id, limit=2)
    assert [(one.position, one.data["symbol"]) for one in first.notifications] == [
        (position, "Zürich") for position in positions[:2]
    ]
    assert first.cursor is not None
    client.ack(made.id, first.cursor)
    taken = list(itertools.islice(client.notifications(made.id, limit=2), 3))
    assert [one.position for one in taken] == positions[2:5]
    assert [one.position for one in itertools.islice(client.stream(made.id, ack=False), 3)] == positions[4:]
    assert [one.position for one in client.notifications(made.id, follow=False)] == positions[4:]
    assert list(client.notifications(made.id, follow=False)) == []


def test_a_stream_of_more_than_a_window_comes_whole_to_both_clients(gateway: Any, client: Client) -> None:
    ids = [client.subscribe("stocks", "TRUE", mode="sse").id for _ in range(2)]
    positions = client.publish_many("stocks", [{"volume": number} for number in range(2_500)])
    gateway.load(positions, *ids)

    async def awaited() -> list[int]:
        async with AsyncClient(gateway.url, token=gateway.token) as other:
            taken = []
            async for one in other.stream(ids[1]):
                taken.append(one.position)
                if len(taken) == 2_500:
                    break
            return taken

    assert [one.position for one in itertools.islice(client.stream(ids[0]), 2_500)] == positions
    assert asyncio.run(awaited()) == positions
    for id in ids:  # what was dealt with when the window was full is acknowledged
        assert client.pull(id, limit=1).notifications[0].position >= positions[2_000]


def test_a_stream_ends_when_its_subscription_is_deleted(gateway: Any, client: Client) -> None:
    made = client.subscribe("stocks", "TRUE", mode="sse")
    (position,) = client.publish_many("stocks", [{"volume": 1}])
    gateway.load([position], made.id)
    stream = client.stream(made.id)
    assert next(stream).position == position
    client.delete(made.id)
    assert list(stream) == []


def test_filters_are_tested_and_events_explained(client: Client) -> None:
    assert client.test_filter("stocks", "price > 3", {"price": 4}).matches is True
    missed = client.test_filter("stocks", "price > 3 AND symbol = 'OIL'", {"price": 1, "symbol": "OIL"})
    assert missed.matches is False
    assert "2.0 below 3.0" in missed.text
    assert client.test_filter("stocks", "price > 3", {}).matches is None
    near, far = client.subscribe("stocks", "price > 3").id, client.subscribe("stocks", "price > 0").id
    found = client.event_matches(client.publish("stocks", {"price": 2}))
    assert found.matched == (far,)
    assert [(one.subscription, one.failing) for one in found.nearly] == [(near, 1)]


def test_health_is_told_while_nothing_matches(client: Client) -> None:
    assert not client.health().ok
    assert "driver" in client.health().json


def test_a_wrong_token_is_told_with_what_to_do(gateway: Any) -> None:
    with Client(gateway.url, token="tdg_wrong") as client, pytest.raises(ServiceError, match=r"401 .*TIDINGS_TOKEN"):
        client.domains()


def test_the_asynchronous_client_does_the_same(gateway: Any, client: Client) -> None:
    async def talk() -> None:
        async with AsyncClient(gateway.url, token=gateway.token) as other:
            made = await other.subscribe("stocks", "TRUE")
            positions = await other.publish_many("stocks", [{"volume": number} for number in range(5)])
            gateway.load(positions, made.id)
            taken = [one.position async for one in other.notifications(made.id, follow=False)]
            assert [one.id async for one in other.subscriptions()] == [made.id]
            await other.delete(made.id)
            assert taken == positions

    asyncio.run(talk())
