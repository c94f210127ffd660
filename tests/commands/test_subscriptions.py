"""Subscriptions are created, found, changed and deleted."""

from __future__ import annotations

import json

import pytest

from tidings.client import Notification
from tidings.commands.inputs import FilterTextError
from tidings.commands.receive import line_of

from ..client.fake_service import FakeService
from .conftest import Run


def test_a_subscription_s_id_is_what_is_printed(run: Run, service: FakeService) -> None:
    ran = run("subscribe", "quotes", "price > 3", "--id", "dear", "--label", "team=oil", "--start", "17")
    assert ran.out == "dear\n"
    assert "tidings pull dear" in ran.err
    made = service.subscriptions["dear"]
    assert (made["filter"], made["labels"], made["start"]) == ("price > 3", {"team": "oil"}, {"position": 17})


def test_nodes_are_asked_for_and_printed_in_place_of_the_event(run: Run, service: FakeService) -> None:
    run("subscribe", "quotes", "xpath_boolean(a, '/b')", "--id", "dear", "--select", "nodes")
    assert service.subscriptions["dear"]["select"] == "nodes"
    run("subscriptions", "change", "dear", "--select", "document")
    assert json.loads(service.requests[-1].content) == {"select": "document"}
    assert line_of(Notification(3, {}, ("<b>é</b>", "1"))) == '{"position": 3, "nodes": ["<b>é</b>", "1"]}'


def test_a_webhook_s_secret_is_shown_once(run: Run, service: FakeService) -> None:
    ran = run("subscribe", "quotes", "TRUE", "--id", "hook", "--webhook", "https://example.org/hook")
    assert service.subscriptions["hook"]["delivery"]["secret"] in ran.err
    assert ran.out == "hook\n"


def test_a_filter_that_is_wrong_points_into_its_text(run: Run) -> None:
    with pytest.raises(FilterTextError) as caught:
        run("subscribe", "quotes", "price !")
    assert (caught.value.text, caught.value.column) == ("price !", 7)


def test_subscriptions_are_listed_changed_and_removed(run: Run, service: FakeService) -> None:
    for number in range(3):
        run("subscribe", "quotes", f"price > {number}", "--id", f"s{number}")
    listed = run("subscriptions", "list", "--limit", "2")
    assert "s1" in listed.out
    assert "s2" not in listed.out
    assert "and more" in listed.err
    assert "price > 9" in run("subscriptions", "change", "s0", "--filter", "price > 9", "--label", "a=b").out
    assert json.loads(service.requests[-1].content) == {"filter": "price > 9", "labels": {"a": "b"}}
    run("subscriptions", "change", "s0", "--expires", "never", "--no-label", "a")
    assert json.loads(service.requests[-1].content) == {"labels": {"a": None}, "expires": None}
    run("subscriptions", "pause", "s0")
    assert service.subscriptions["s0"]["paused"]
    run("subscriptions", "resume", "s0")
    assert "s0" in run("subscriptions", "show", "s0").out
    assert json.loads(run("subscriptions", "dead-letters", "s0").out) == {"position": 3, "reason": "410 Gone"}
    run("subscriptions", "redrive", "s0", "3")
    run("subscriptions", "delete", "s0")
    assert sorted(service.subscriptions) == ["s1", "s2"]
