"""Quotas: read from a file, counted by tenant, and shared so that nobody takes another's tenth."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.waiting import until

from tidings.service.data.data_directory import replace_json
from tidings.service.gateway.gateway_settings import Quota, QuotaError, Quotas, ServiceLimits, read_quotas
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.tenant_use import OWN, TenantUse

NAME = "uploading_bytes"
ROW = re.compile(r"^\| `(\w+)` \| ([0-9,]+)( [KMG]iB)? \| .*\|$", re.MULTILINE)
SIZES = {"": 1, " KiB": 1 << 10, " MiB": 1 << 20, " GiB": 1 << 30}
TENANTS = ("ada", "ben", "cleo")
_steps = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.integers(1, 120), st.booleans()), max_size=60
)  # a tenant, how much, and whether it is given back


def taken(use: TenantUse, tenant: str, amount: int) -> int | None:
    """The status of a refusal, if it is one."""
    try:
        use.take(tenant, NAME, amount)
    except Problem as problem:
        return problem.status
    return None


@given(_steps, st.integers(0, 300), st.integers(1, 10))
def test_a_tenant_within_its_tenth_is_never_refused_and_the_whole_is_bounded(
    steps: list[tuple[str, int, bool]], shared: int, wanted: int
) -> None:
    use = TenantUse(Quotas(Quota(uploading_bytes=100)), {NAME: shared})
    held: dict[str, list[int]] = {tenant: [] for tenant in TENANTS}
    for tenant, amount, back in steps:
        if back and held[tenant]:
            use.give(tenant, NAME, held[tenant].pop())
        else:
            before = use.used(tenant, NAME)
            status = taken(use, tenant, amount)
            held[tenant] += [amount] if status is None else []
            assert status in ((429,) if before + amount > 100 else (None, 503))
            assert status is None or before + amount > 100 // OWN, "refused within its tenth"
        assert all(use.used(tenant, NAME) == sum(amounts) for tenant, amounts in held.items())
        assert sum(sum(amounts) for amounts in held.values()) <= shared + len(TENANTS) * 10
        use.take("dora", NAME, wanted)  # who uses no more than a tenth, whatever the others do
        use.give("dora", NAME, wanted)
    for tenant, amounts in held.items():
        for amount in amounts:
            use.give(tenant, NAME, amount)
    assert use._taken[NAME] == 0


def test_a_refusal_names_the_limit_its_value_and_what_to_do() -> None:
    use = TenantUse(Quotas(Quota(domains=2), {"acme": Quota(domains=3)}), {})
    for _ in range(2):
        use.take("ada", "domains")
    for _ in range(3):
        use.take("acme", "domains")
    with pytest.raises(Problem) as refused:
        use.take("ada", "domains")
    assert refused.value.status == 429
    assert refused.value.more == {"limit": "domains", "value": 2}
    assert "3 domains" in refused.value.detail
    assert "delete some" in refused.value.detail
    assert "Retry-After" not in refused.value.headers  # which would not help
    assert use.refusals == {("ada", "domains"): 1}
    assert use.of("ada")["domains"] == {"used": 2, "limit": 2}


def test_what_was_not_made_does_not_count() -> None:
    use = TenantUse(Quotas(), {})
    with pytest.raises(ValueError, match="no"), use.made("ada", "domains"):
        raise ValueError("no")
    assert use.used("ada", "domains") == 0
    with use.made("ada", "domains"):
        pass
    assert use.used("ada", "domains") == 1


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(
        '[service]\nhead_seconds = 5\nmax_connections = 100\n[default]\ndomains = 7\nwaiting_bytes = "2gb"\n'
        "[tenants.acme]\ndomains = 9\n"
    )
    quotas = read_quotas(file)
    assert quotas.of("anybody") == Quota(domains=7, waiting_bytes=2 << 30)
    assert quotas.of("acme") == Quota(domains=9, waiting_bytes=2 << 30)
    assert (quotas.service.head_seconds, quotas.service.max_connections) == (5.0, 100)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[default", "not TOML"),
        ("[defaults]", "no place for \\[defaults\\]; did you mean 'default'"),
        ("[default]\ndomain = 1", "no 'domain'; did you mean 'domains'"),
        ("[default]\ndomains = -1", "not negative, not -1"),
        ("[default]\ndomains = true", "not True"),
        ("[default]\ndomains = 1.5", "not 1.5"),
        ('[default]\ndomains = "many"', "not 'many'"),
        ('[default]\nwaiting_bytes = "2 big"', 'such as "64mb", not'),
        ("[tenants]\nacme = 3", "is a table"),
        ("[tenants.'A b']", "name of a tenant"),
        ("default = 3", "is a table"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_a_hint(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(text)
    with pytest.raises(QuotaError, match=says):
        read_quotas(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuotaError, match="cannot be read: No such file"):
        read_quotas(tmp_path / "none.toml")


def test_the_manual_has_every_limit_with_its_default_and_its_example_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/service.md").read_text()
    written = {name: float(value.replace(",", "")) * SIZES[size] for name, value, size in ROW.findall(page)}
    assert written == {**dataclasses.asdict(Quota()), **dataclasses.asdict(ServiceLimits())}
    example = re.search(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert example is not None
    file = tmp_path / "quotas.toml"
    file.write_text(example[1])
    assert read_quotas(file).of("acme") == Quota(domains=5000, streams=200, uploading_bytes=64 << 20)


# -- what a tenant has, over HTTP -------------------------------------------------------------------------


def refused(answer: Any, limit: str, value: int) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.json()["limit"], answer.json()["value"]) == (limit, value)


def test_domains_are_counted_however_they_come_and_given_back(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(domains=3)))  # of which one is there
    assert gateway.client.post("/v1/domains/a/events", json={"x": 1}).is_success
    gateway.describe("b")
    gateway.describe("b")  # again is no other
    refused(gateway.client.post("/v1/domains/c/events", json={"x": 1}), "domains", 3)
    refused(gateway.client.put("/v1/domains/c", json={"attributes": [{"name": "x", "type": "int"}]}), "domains", 3)
    assert gateway.client.get("/v1/domains/c").status_code == 404
    assert gateway.client.put("/v1/domains/bad", json={"attributes": [{"name": "x", "type": "no"}]}).status_code == 422
    stranger = gateway.stranger()
    assert stranger.post("/v1/domains/c/events", json={"x": 1}).is_success
    gateway.restart()
    refused(gateway.client.post("/v1/domains/c/events", json={"x": 1}), "domains", 3)
    assert gateway.client.delete("/v1/domains/a").status_code == 204
    assert gateway.client.delete("/v1/domains/a").status_code == 404
    assert gateway.client.post("/v1/domains/c/events", json={"x": 1}).is_success
    refused(gateway.client.post("/v1/domains/d/events", json={"x": 1}), "domains", 3)


def test_subscriptions_are_counted_and_given_back(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(subscriptions=2)))
    first = gateway.subscribe(id="one")["id"]
    taken = gateway.client.post("/v1/subscriptions", json={"domain": "stocks", "filter": "TRUE", "id": "one"})
    assert taken.status_code == 409  # which does not count
    gateway.subscribe(start="earliest")
    body = {"domain": "stocks", "filter": "TRUE"}
    refused(gateway.client.post("/v1/subscriptions", json=body), "subscriptions", 2)
    refused(gateway.client.put("/v1/subscriptions/three", json=body), "subscriptions", 2)
    assert gateway.client.put("/v1/subscriptions/one", json=body).status_code == 200
    gateway.restart()
    refused(gateway.client.post("/v1/subscriptions", json=body), "subscriptions", 2)
    assert gateway.client.delete(f"/v1/subscriptions/{first}").status_code == 204
    gateway.subscribe()


def test_the_cost_of_filters_is_counted_and_given_back(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(filter_cost=60)))

    def used() -> int:
        found: int = gateway.client.get("/v1/health").json()["quotas"]["filter_cost"]["used"]
        return found

    cheap, dear = "price > 1", "symbol LIKE '" + "x" * 40 + "'"
    gateway.subscribe(cheap, id="one")
    assert (first := used()) > 0
    gateway.subscribe(dear, id="two")
    assert used() > 40
    body = {"domain": "stocks", "filter": dear}
    refused(gateway.client.post("/v1/subscriptions", json=body), "filter_cost", 60)
    refused(gateway.client.patch("/v1/subscriptions/one", json={"filter": dear}), "filter_cost", 60)
    before = used()
    gateway.restart()
    assert used() == before
    assert gateway.client.patch("/v1/subscriptions/two", json={"filter": cheap}).is_success
    assert used() == 2 * first
    assert gateway.client.patch("/v1/subscriptions/one", json={"filter": dear}).is_success
    assert used() == before
    for id in ("one", "two"):
        assert gateway.client.delete(f"/v1/subscriptions/{id}").status_code == 204
    assert used() == 0


def test_backtests_under_way_are_counted_until_they_are_answered(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(backtests=2)), backtest_wait_seconds=0.0)
    body = {"domain": "stocks", "filter": "price > 1"}
    jobs = [gateway.client.post("/v1/filters:backtest", json=body).json()["job"] for _ in range(2)]
    refused(gateway.client.post("/v1/filters:backtest", json=body), "backtests", 2)
    assert gateway.client.get("/v1/health").json()["quotas"]["backtests"] == {"used": 2, "limit": 2}
    answer = gateway.data.answer(jobs[0])
    answer.parent.mkdir(exist_ok=True)
    answer.write_text('{"done": true, "matched": 0}')  # which nobody asks for
    assert gateway.client.post("/v1/filters:backtest", json=body).status_code == 202


def test_bytes_that_wait_to_be_matched_are_counted_by_tenant(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(waiting_bytes=10_000)))
    event = {"symbol": "x" * 3_000}
    for _ in range(3):
        gateway.publish(event)
    refused(gateway.client.post("/v1/domains/stocks/events", json=event), "waiting_bytes", 10_000)
    refused(gateway.client.post("/v1/domains/another/events", json=event), "waiting_bytes", 10_000)
    assert gateway.client.get("/v1/health").json()["quotas"]["waiting_bytes"]["used"] > 9_000
    assert gateway.stranger().post("/v1/domains/stocks/events", json=event).is_success
    assert gateway.client.delete("/v1/domains/stocks").status_code == 204  # what waited is gone with it

    until(lambda: gateway.client.post("/v1/domains/another/events", json=event).is_success)


def test_a_tenant_has_only_so_much_before_others_in_the_stream_that_they_share(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(shared_waiting_bytes=10_000)))
    event = {"symbol": "x" * 3_000}

    def say(**shared: bool) -> None:
        said = {"state": "running", "reached": 0}
        domains = {f"{tenant}.stocks": {**said, "shared": is_shared} for tenant, is_shared in shared.items()}
        status = {"pid": 7, "time": time.time(), "state": "running", "domains": domains}
        replace_json(gateway.data.driver_status, status)

    def is_refused() -> bool:
        say(default=True, other=True)
        return bool(gateway.client.post("/v1/domains/stocks/events", json=event).status_code == 429)

    until(is_refused)
    refused(gateway.client.post("/v1/domains/stocks/events", json=event), "shared_waiting_bytes", 10_000)

    def is_taken(**shared: bool) -> bool:
        say(**shared)
        return bool(gateway.client.post("/v1/domains/stocks/events", json=event).is_success)

    until(lambda: is_taken(default=False, other=True))  # it has a stream of its own
    until(is_refused)
    until(lambda: is_taken(default=True))  # nobody else waits behind it


def test_bytes_that_wait_are_those_of_the_events_and_are_known_after_a_restart(make_gateway: Any) -> None:
    """A feed of 21 kB becomes 30 events of 40 kB, each twice with the head of the feed."""
    gateway = make_gateway(quotas=Quotas(Quota(waiting_bytes=2_000_000)))
    head, items = "x" * 20_000, "".join(f"<item><guid>a{number}</guid></item>" for number in range(30))
    feed = f"<rss><channel><title>{head}</title>{items}</channel></rss>"

    def post() -> httpx2.Response:
        kind = {"content-type": "application/rss+xml"}
        return gateway.client.post("/v1/domains/news/events", content=feed, headers=kind)

    def waiting() -> int:
        used: int = gateway.client.get("/v1/health").json()["quotas"]["waiting_bytes"]["used"]
        return used

    first = post()
    assert first.status_code == 200, first.text
    assert (before := waiting()) > 30 * 2 * len(head) > 30 * len(feed)
    refused(post(), "waiting_bytes", 2_000_000)
    gateway.restart()
    assert waiting() == pytest.approx(before, abs=100)
    refused(post(), "waiting_bytes", 2_000_000)


def test_a_tenant_sees_its_own_use_and_the_operator_that_of_all(make_gateway: Any) -> None:
    gateway = make_gateway(quotas=Quotas(Quota(domains=5), {"tenant0": Quota(domains=1)}))
    stranger = gateway.stranger()  # tenant0
    assert stranger.post("/v1/domains/a/events", json={"x": 1}).is_success
    refused(stranger.post("/v1/domains/b/events", json={"x": 1}), "domains", 1)
    assert stranger.get("/v1/health").json()["quotas"]["domains"] == {"used": 1, "limit": 1}
    assert gateway.client.get("/v1/health").json()["quotas"]["domains"] == {"used": 1, "limit": 5}
    with gateway.client_of(None) as nobody:
        assert "quotas" not in nobody.get("/v1/health").json()
    said = gateway.client.get("/metrics").text
    assert 'tidings_tenant_used{quota="domains",tenant="tenant0"} 1.0' in said
    assert 'tidings_tenant_limit{quota="domains",tenant="tenant0"} 1.0' in said
    assert 'tidings_tenant_refusals_total{quota="domains",tenant="tenant0"} 1.0' in said
