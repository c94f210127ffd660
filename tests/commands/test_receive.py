"""Notifications are printed, and acknowledged once they are."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from ..client.fake_service import FakeService, Pieces
from .conftest import Ran, Run


def test_pull_prints_lines_and_acknowledges_them(run: Run, service: FakeService) -> None:
    run("subscribe", "quotes", "TRUE", "--id", "mine")
    run("publish", "quotes", '[{"price": 1}, {"price": 2}, {"price": 3}]')
    assert len(run("pull", "mine", "--limit", "2", "--no-ack").out.splitlines()) == 2
    lines = run("pull", "mine", "--limit", "2").out.splitlines()
    assert [json.loads(line)["position"] for line in lines] == [0, 1]
    assert [json.loads(line)["event"]["data"] for line in run("pull", "mine", "--all").out.splitlines()] == [
        {"price": 3}
    ]
    assert run("pull", "mine") == Ran(0, "", "nothing waits\n")


def test_tail_acknowledges_what_it_has_shown(run: Run, service: FakeService) -> None:
    run("subscribe", "quotes", "TRUE", "--id", "mine")
    run("publish", "quotes", '[{"price": 1}, {"price": 2}, {"price": 3}]')
    lines = run("tail", "mine", "--count", "2").out.splitlines()
    assert [json.loads(line)["position"] for line in lines] == [0, 1]
    assert service.cursors == {"mine": 1}


def test_tail_of_a_filter_leaves_no_subscription_behind(run: Run, service: FakeService) -> None:
    watched: list[dict[str, Any]] = []

    def stream(request: httpx2.Request) -> httpx2.Response:
        watched.append(dict(service.subscriptions[request.url.path.split("/")[3]]))
        sent = b'id: 4\nevent: notification\ndata: {"position":4,"event":{"price":9}}\n\n'
        return httpx2.Response(200, stream=Pieces(iter([sent])))

    service.troubles = [None, stream]
    assert json.loads(run("tail", "quotes", "price > 8", "--count", "1").out) == {"position": 4, "event": {"price": 9}}
    assert watched[0]["filter"] == "price > 8"
    assert "expires" in watched[0]
    assert service.subscriptions == {}
