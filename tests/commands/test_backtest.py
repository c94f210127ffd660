"""A backtest over a service's log."""

from __future__ import annotations

import json

from ..client.fake_service import FakeService
from .conftest import Run


def test_a_backtest_on_a_service_shows_counts_rate_and_samples(run: Run, service: FakeService) -> None:
    places = ("--from", "17", "--to", "2026-02-01T00:00:00Z")
    ran = run("backtest", "price > 4", "--domain", "quotes", "--against", "mine", *places)
    assert ran.status == 0
    assert "would be delivered" in ran.out
    assert "22.22 %" in ran.out
    assert '{"price": 9}' in ran.out
    sent = next(json.loads(request.content) for request in service.requests if request.content)
    assert (sent["from"], sent["to"], sent["compare"]) == (17, "2026-02-01T00:00:00Z", "mine")
    ran = run("backtest", "price > 4", "--domain", "quotes", "--from", "noon")
    assert ran.status == 2
    assert "--from noon" in ran.err
