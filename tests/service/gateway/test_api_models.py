"""Bodies of the control plane: what is refused, with which text and where; and that the document has the same rules."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.gateway.api_models import (
    BacktestBody,
    Body,
    DomainBody,
    FilterTestBody,
    RedriveBody,
    SubscriptionBody,
    SubscriptionPatch,
    read_body,
)
from tidings.service.gateway.problems import Problem

SECRET = "whsec_" + "A" * 44
FILTER = "a filter is text, such as price < 100; write TRUE to have every event"
LABEL = "a label is text of at most 255 characters, none of them NUL"
START = 'a start is "latest", "earliest", {"position": …} or {"time": "…Z"}'
LONG = "a filter has at most 100000 characters, none of them NUL"

SUBSCRIPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"domain": None}, "/domain", "a subscription needs the name of its domain"),
    ({"filter": 1}, "/filter", FILTER),
    ({"filter": " "}, "/filter", FILTER),
    ({"filter": "x" * 100_001}, "/filter", LONG),
    ({"filtre": 1}, "/filtre", "'filtre' is no field here; did you mean 'filter'?"),
    ({"paused": "yes"}, "/paused", "true or false is wanted, not a text"),
    ({"paused": 1}, "/paused", "true or false is wanted, not a number"),
    ({"select": "odd"}, "/select", "what is delivered is one of document, nodes, not 'odd'"),
    ({"start": "now"}, "/start", START),
    ({"start": {"position": 1, "time": 2}}, "/start", START),
    ({"start": {"position": True}}, "/start/position", "a position is an integer from 0"),
    ({"start": {"time": 5}}, "/start/time", "a time is text, such as 2026-05-01T12:00:00Z, not a number"),
    ({"labels": {"a~/b": 1}}, "/labels/a~0~1b", LABEL),
    ({"labels": {"": "x"}}, "/labels/", "a label's name has 1 to 255 characters, none of them = or NUL"),
    ({"labels": "a"}, "/labels", "labels are an object of texts, not a text"),
    ({"delivery": "pull"}, "/delivery", "a delivery is an object with a mode, not a text"),
    ({"delivery": {"mode": "pigeon"}}, "/delivery/mode", "a mode is one of pull, sse, webhook, not 'pigeon'"),
    ({"delivery": {"mode": "sse", "secret": SECRET}}, "/delivery/secret", "only webhooks have a secret; leave it out"),
    ({"delivery": {"moed": 1}}, "/delivery/moed", "'moed' is no field here; did you mean 'mode'?"),
]


def refusal(model: type[Body], body: dict[str, Any]) -> Problem:
    with pytest.raises(Problem) as raised:
        read_body(model, body)
    return raised.value


@pytest.mark.parametrize(("fields", "pointer", "detail"), SUBSCRIPTIONS)
def test_a_wrong_field_is_refused_with_its_pointer_and_our_text(
    fields: dict[str, Any], pointer: str, detail: str
) -> None:
    problem = refusal(SubscriptionBody, {"domain": "stocks", "filter": "TRUE", **fields})
    assert (problem.status, problem.kind, problem.pointer, problem.detail) == (422, "invalid", pointer, detail)


@pytest.mark.parametrize(
    ("model", "body", "pointer", "detail"),
    [
        (SubscriptionBody, {"domain": "stocks"}, "/filter", FILTER),
        (SubscriptionPatch, {"domain": "stocks"}, "/domain", "'domain' is no field here; there are "),
        (SubscriptionPatch, {"delivery": {"more": 1}}, "/delivery/more", "'more' is no field here; "),
        (FilterTestBody, {"filter": "TRUE"}, "/event", "an event is an object, and this is nothing"),
        (FilterTestBody, {"filter": "TRUE", "event": []}, "/event", "an event is an object, and this is a list"),
        (BacktestBody, {"filter": "TRUE", "domain": "d", "from": -1}, "/from", "a position is an integer from 0"),
        (BacktestBody, {"filter": "TRUE", "domain": "d", "first": 1}, "/first", "'first' is no field here; "),
        (RedriveBody, {"positions": 1}, "/positions", "positions are a list of integers; leave them out for all"),
        (RedriveBody, {"positions": [1, "2"]}, "/positions/1", "a position is an integer from 0"),
        (DomainBody, {}, "/attributes", "attributes are a list of objects with name and type, not nothing"),
    ],
)
def test_every_body_is_refused_in_the_same_form(model: type[Body], body: Any, pointer: str, detail: str) -> None:
    problem = refusal(model, body)
    assert (problem.status, problem.pointer) == (422, pointer)
    assert problem.detail.startswith(detail)


def test_a_time_without_an_offset_is_malformed() -> None:
    body = {"domain": "stocks", "filter": "TRUE", "expires": "2099-01-01T00:00:00"}
    assert refusal(SubscriptionBody, body).status == 400


def test_a_patch_of_a_delivery_keeps_what_it_does_not_name() -> None:
    row: Any = SimpleNamespace(delivery="webhook", url="https://a.example/", secret=SECRET, labels={"a": "b"})
    patch = read_body(
        SubscriptionPatch, {"delivery": {"url": "https://b.example/", "other": None}, "labels": {"a": None}}
    )
    delivery = patch.delivery_for(row)
    assert delivery is not None
    assert (delivery.mode, delivery.url, delivery.secret) == ("webhook", "https://b.example/", SECRET)
    assert patch.changes(row) == {"labels": {}}
    assert read_body(SubscriptionPatch, {}).delivery_for(row) is None


def test_the_document_has_the_rules_of_the_models() -> None:
    schema = SubscriptionBody.model_json_schema()
    assert schema["required"] == ["domain", "filter"]
    assert schema["additionalProperties"] is False
    assert {"enum": ["latest", "earliest"], "type": "string"} in schema["properties"]["start"]["anyOf"]
    assert "A-Za-z0-9" in json.dumps(schema["properties"]["id"])
    assert BacktestBody.model_json_schema()["properties"].keys() == {"domain", "filter", "from", "to", "compare"}
