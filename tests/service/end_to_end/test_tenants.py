"""Tenants are apart: every route, asked by another tenant, is as if there were nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.gateway.gateway_process import arguments, main, settings_of
from tidings.service.gateway.security import BindError, check_bind

STRANGERS: list[tuple[str, str, Any, int]] = [
    ("GET", "/v1/domains/stocks", None, 404),
    ("DELETE", "/v1/domains/stocks", None, 404),
    ("GET", "/v1/subscriptions/mine", None, 404),
    ("PATCH", "/v1/subscriptions/mine", {"paused": True}, 404),
    ("DELETE", "/v1/subscriptions/mine", None, 404),
    ("GET", "/v1/subscriptions/mine/notifications", None, 404),
    ("POST", "/v1/subscriptions/mine/ack", {"cursor": "0"}, 404),
    ("GET", "/v1/subscriptions/mine/stream", None, 404),
    ("GET", "/v1/subscriptions/mine/dead-letters", None, 404),
    ("POST", "/v1/subscriptions/mine/dead-letters:redrive", {}, 404),
    ("POST", "/v1/subscriptions", {"domain": "stocks", "filter": "TRUE"}, 404),
    ("PUT", "/v1/subscriptions/mine", {"domain": "stocks", "filter": "TRUE"}, 404),
    ("POST", "/v1/filters:test", {"domain": "stocks", "filter": "TRUE", "event": {}}, 404),
    ("POST", "/v1/filters:backtest", {"domain": "stocks", "filter": "TRUE"}, 404),
    ("GET", "/v1/jobs/{job}", None, 404),
    ("GET", "/v1/events/{position}/matches", None, 404),
    ("GET", "/metrics", None, 403),
]
# What a stranger may ask, for it concerns the stranger's own alone.
OWN = {
    ("GET", "/v1/domains"),
    ("PUT", "/v1/domains/{domain}"),
    ("POST", "/v1/domains/{domain}/events"),
    ("GET", "/v1/subscriptions"),
    ("GET", "/v1/health"),
}


@pytest.fixture
def furnished(stocks: Any) -> Any:
    """A tenant who has one of everything."""
    stocks.subscribe(id="mine")
    (stocks.position,) = stocks.publish_many(1)
    stocks.load([stocks.position], "mine")
    stocks.job = stocks.catalogue.add_job("backtest", stocks.name, {"domain": "stocks", "filter": "TRUE"})
    return stocks


def test_another_tenant_finds_nothing_on_any_route(furnished: Any) -> None:
    stranger = furnished.stranger()
    for method, path, body, status in STRANGERS:
        place = path.format(job=furnished.job, position=furnished.position)
        answer = stranger.request(method, place, json=body)
        assert answer.status_code == status, (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
    assert stranger.get("/v1/domains").json() == {"domains": []}
    assert stranger.get("/v1/subscriptions").json() == {"subscriptions": [], "next": None}
    assert stranger.get("/v1/health").json()["domains"] == {}
    assert furnished.client.get("/v1/subscriptions/mine").json()["state"] == "active"
    assert len(furnished.pull("mine")["notifications"]) == 1


def test_every_route_is_asked_by_a_stranger(furnished: Any) -> None:
    document = furnished.client.get("/v1/openapi.json").json()
    known = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}

    def pattern(path: str) -> str:
        return re.sub(r"\\\{[a-z]+\\\}", "[^/]+", re.escape(path))

    asked = {
        (m, p) for m, p in known for method, path, *_ in STRANGERS if m == method and re.fullmatch(pattern(p), path)
    }
    assert asked | OWN == known


def test_every_route_but_that_of_health_wants_a_token(furnished: Any) -> None:
    document = furnished.client.get("/v1/openapi.json").json()
    nobody = furnished.client_of(None)
    for path, methods in document["paths"].items():
        for method in methods:
            answer = nobody.request(method, re.sub(r"\{[a-z]+\}", "1", path), json={})
            assert answer.status_code == (200 if path == "/v1/health" else 401), (method, path)


def test_the_same_names_are_different_things_to_different_tenants(furnished: Any) -> None:
    stranger = furnished.stranger()
    attributes = {"attributes": [{"name": "colour", "type": "string"}]}
    assert stranger.put("/v1/domains/stocks", json=attributes).status_code == 201
    (position,) = stranger.post("/v1/domains/stocks/events", json={"colour": "red"}).json()["positions"]
    assert position == furnished.position + 1
    body = {"domain": "stocks", "filter": "colour = 'red'", "id": "mine"}
    assert stranger.post("/v1/subscriptions", json=body).status_code == 201
    assert stranger.get("/v1/subscriptions/mine/notifications").json()["notifications"] == []
    assert furnished.client.get(f"/v1/events/{position}/matches").status_code == 404
    assert stranger.get(f"/v1/events/{position}/matches").json()["event"] == {"colour": "red"}


@pytest.mark.parametrize("path", ["/v1/domains", "/v1/subscriptions", "/v1/subscriptions/x/stream", "/metrics"])
@pytest.mark.parametrize("header", [None, "Bearer", "Bearer tdg_nobody", "Basic dXNlcjpwYXNz", "tdg_nobody"])
def test_without_a_token_nobody_is_served(gateway: Any, path: str, header: str | None) -> None:
    answer = gateway.client_of(None, **({"Authorization": header} if header else {})).get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_first_token_is_a_file_that_its_owner_alone_can_read(alone: Any) -> None:
    assert alone.data.token.stat().st_mode & 0o777 == 0o600
    assert alone.token.startswith("tdg_")
    alone.restart()
    assert alone.data.read_token() == alone.token
    assert alone.client.get("/v1/domains").status_code == 200
    assert alone.token.encode() not in alone.data.catalogue.read_bytes()


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 421), ("localhost.evil.example:80", 421), ("", 421), ("localhost:1", 200), ("[::1]:80", 200)],
)
def test_a_request_for_another_host_is_turned_away(gateway: Any, host: str, status: int) -> None:
    answer = gateway.client.get("/v1/health", headers={"Host": host})
    assert answer.status_code == status
    if status == 421:
        assert answer.headers["content-type"] == "application/problem+json"


def test_no_other_page_may_read_answers(gateway: Any) -> None:
    answer = gateway.client.options(
        "/v1/domains", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    )
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "access-control-allow-origin" not in gateway.client.get("/v1/health").headers


def test_health_and_metrics_tell_how_the_service_does(alone: Any) -> None:
    alone.subscribe(id="mine")
    alone.load(alone.publish_many(1), "mine")
    health = alone.client_of(None).get("/v1/health").json()
    assert (health["status"], health["driver"]["state"]) == ("degraded", "not started")
    assert "domains" not in health
    alone.pull("mine")
    text = alone.client.get("/metrics").text
    for line in (
        "tidings_events_published_total 1.0",
        'tidings_domain_lag_events{domain="default.stocks"} 1.0',
        'tidings_top_subscription_notifications{subscription="default/mine"} 1.0',
    ):
        assert line in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_a_bind_that_others_can_reach_needs_tls_and_a_token(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    for tls, token in ((False, True), (True, False), (False, False)):
        with pytest.raises(BindError, match="reached"):
            check_bind(host, tls=tls, token=token)
    check_bind(host, tls=True, token=True)
    assert main(["nowhere", "--host", host]) == 2
    assert "TLS" in capsys.readouterr().err


def test_loopback_needs_neither() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_bind(host, tls=False, token=False)
    settings = settings_of(arguments().parse_args(["--host", "127.0.0.1", "--allow-host", "Tidings.Example"]))
    assert settings.hosts == {"127.0.0.1", "::1", "localhost", "tidings.example"}
