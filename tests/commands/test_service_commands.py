"""The commands that speak to a service: what they send, what they print, and what they say when it goes wrong."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tidings.cli import app
from tidings.client import Notification, transport
from tidings.commands.inputs import FilterTextError
from tidings.commands.receive import line_of
from tidings.errors import TidingsError
from tidings.store.catalogue import Catalogue

from ..client.fake_service import TOKEN, FakeService, Pieces


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Ran]
command_of = functools.cache(get_command)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeService:
    """What every client of the commands speaks to."""
    fake = FakeService()

    def options(settings: Any, timeout: float, _: Any) -> dict[str, Any]:
        return transport.options(settings, timeout, fake.transport())

    monkeypatch.setattr("tidings.client.synchronous.options", options)
    monkeypatch.setenv("TIDINGS_TOKEN", TOKEN)
    monkeypatch.delenv("TIDINGS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return fake


@pytest.fixture
def run(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Run:
    # To build the commands takes longer than to run one, so it is done once.
    monkeypatch.setattr("typer.testing._get_command", command_of)

    def run_command(*arguments: str, input: str | None = None) -> Ran:
        done = CliRunner().invoke(app, list(arguments), input=input)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run_command


@pytest.mark.parametrize(
    "command", ["publish", "subscribe", "pull", "tail", "explain", "domain", "subscriptions", "token"]
)
def test_help_teaches_with_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.status == 0
    assert f"  tidings {command} " in ran.out


# ---------------------------------------------------------------------- publish


def test_an_event_is_published(run: Run, service: FakeService) -> None:
    assert run("publish", "quotes", '{"price": 8.40}') == Ran(0, "published 1 event at position 0\n", "")
    assert b'"price":8.40' in service.requests[-1].content, "as exact as it was written"
    ran = run("publish", "quotes", '{"price": 1}', "--id", "7", "--source", "/mine", "--type", "quote")
    assert ran.out == "published 1 event at position 1\n"
    event = service.log[-1][1]
    assert (event["id"], event["source"], event["type"]) == ("7", "/mine", "quote")


def test_events_are_published_from_input_and_from_files(run: Run, service: FakeService, tmp_path: Path) -> None:
    assert run("publish", "quotes", "-", input='{"price": 1}\n\n{"price": 2}\n').out == (
        "published 2 events at positions 0 to 1\n"
    )
    pq.write_table(pa.table({"price": [3.5, None], "symbol": ["A", "B"]}), tmp_path / "events.parquet")
    (tmp_path / "events.csv").write_text("price,symbol\n4,A\n5,B\n")
    (tmp_path / "events.jsonl").write_text('{"price": 6}\n{"price": 7}\n')
    (tmp_path / "events.json").write_text('[{"price": 8}]')
    for suffix in ("parquet", "csv", "jsonl", "json"):
        run("publish", "quotes", "--events", f"events.{suffix}", "--batch", "1", "--source", "/files")
    assert [event["data"] for _, event in service.log[2:]] == [
        {"price": 3.5, "symbol": "A"}, {"symbol": "B"}, {"price": 4, "symbol": "A"}, {"price": 5, "symbol": "B"},
        {"price": 6}, {"price": 7}, {"price": 8},
    ]  # fmt: skip
    assert {event["source"] for _, event in service.log[2:]} == {"/files"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("publish", "quotes", "{"), "malformed JSON"),
        (("publish", "quotes", "[]"), "no events"),
        (("publish", "quotes", "--events", "nowhere.jsonl"), "cannot read nowhere.jsonl"),
        (("publish", "quotes", "--events", "events.xml"), ".parquet"),
        (("pull", "nobody"), "there is no subscription 'nobody'"),
        (("tail", "nobody"), "there is no subscription 'nobody'"),
        (("domain", "show", "nothing"), "there is no domain 'nothing'"),
        (("domain", "put", "quotes", "-a", "price:dubble"), "dubble"),
        (("explain", "price > 1", "[]"), "takes one event"),
        (("explain", "price > 1", "{}", "--domain", "quotes"), "give --url too"),
        (("token", "create", "--tenant", "oil"), "has no catalogue"),
    ],
)
def test_what_is_wrong_is_told(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(TidingsError, match=reason):
        run(*arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("publish", "quotes"), "give an EVENT"),
        (("publish", "quotes", '[{"a": 1}, {"a": 2}]', "--id", "7"), "of one event"),
        (("subscribe", "quotes", "TRUE", "--mode", "webhook"), "needs --webhook"),
        (("subscribe", "quotes", "TRUE", "--mode", "pull", "--webhook", "https://example.org"), "leave out --mode"),
        (("subscribe", "quotes", "TRUE", "--start", "yesterday"), "latest, earliest"),
        (("subscribe", "quotes", "TRUE", "--start", "2026-01-02T03:04:05"), "needs its zone"),
        (("subscribe", "quotes", "TRUE", "--expires", "soon"), "30m, 12h"),
        (("subscribe", "quotes", "TRUE", "--label", "team"), "KEY=VALUE"),
        (("pull", "mine", "--all", "--no-ack"), "for ever"),
        (("domain", "put", "quotes"), "give one of"),
        (("domain", "put", "quotes", "-a", "price"), "a colon and a type"),
        (("subscriptions", "change", "mine"), "what is to change"),
        (("explain", "price > 1"), "a FILTER and an EVENT"),
        (("explain", "price > 1", "{}", "--url", "http://127.0.0.1:8080"), "--domain"),
        (("explain", "--position", "4"), "give it with --url"),
    ],
)
def test_wrong_use_is_told_with_status_2(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    ran = run(*arguments)
    assert ran.status == 2
    assert reason in " ".join(ran.err.replace("│", " ").split())


# ---------------------------------------------------------------------- domains


def test_a_domain_is_put_by_attributes_by_a_file_and_by_events(run: Run, service: FakeService, tmp_path: Path) -> None:
    assert "price" in run("domain", "put", "quotes", "-a", "symbol:string", "-a", "price:decimal(10,2)").out
    assert service.domains["quotes"]["attributes"] == [
        {"name": "symbol", "type": "string"}, {"name": "price", "type": "decimal(10,2)"},
    ]  # fmt: skip
    (tmp_path / "stocks.toml").write_text('name = "stocks"\nattributes = [{ name = "at", type = "timestamp" }]\n')
    run("domain", "put", "elsewhere", "stocks.toml")
    assert service.domains["elsewhere"]["attributes"] == [{"name": "at", "type": "timestamp"}]
    (tmp_path / "events.jsonl").write_text('{"price": 6}\n{"price": 7.5}\n')
    run("domain", "put", "seen", "--events", "events.jsonl")
    assert [one["name"] for one in service.domains["seen"]["attributes"]] == ["price"]
    listed = run("domain", "list").out
    assert all(name in listed for name in ("quotes", "elsewhere", "seen"))
    assert 'name = "quotes"' in run("domain", "show", "quotes", "--toml").out


# ---------------------------------------------------------------------- subscriptions


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


# ---------------------------------------------------------------------- delivery


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


# ---------------------------------------------------------------------- explain, backtest


def test_explain_reads_an_event_or_a_file(run: Run, tmp_path: Path) -> None:
    ran = run("explain", "origin = 'JFK' AND delay > 60", '{"origin": "JFK", "delay": 45}')
    assert ran.out.startswith("✗ does not match: 1 predicate short\n")
    (tmp_path / "events.jsonl").write_text("".join(f'{{"price": {price}}}\n' for price in (1, 9, 5, 2)))
    ran = run("explain", "price > 4", "--events", "events.jsonl", "--limit", "3")
    assert ran.out.startswith("2 of 4 events match\n")
    assert [line for line in ran.out.splitlines() if line.startswith("row")] == [
        "row 1: ✓ matches", "row 2: ✓ matches", "row 3: ✗ does not match: 1 predicate short",
    ]  # fmt: skip
    with pytest.raises(FilterTextError, match="prise"):
        run("explain", "prise > 4", "--events", "events.jsonl")


def test_explain_asks_a_service_about_a_filter_and_about_a_position(run: Run, service: FakeService) -> None:
    url = ("--url", "http://127.0.0.1:8080")
    assert run("explain", "price > 4", '{"price": 1.10}', "--domain", "quotes", *url).out == "? NULL\n"
    assert service.requests[-1].content.endswith(b'"event":{"price":1.10}}')
    told = run("explain", "--position", "12", *url).out
    assert "matches 1 subscription\n  ✓ a\n" in told
    assert "nearly\n  ✗ b: price is 1: 2 below 3\n" in told


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


# ---------------------------------------------------------------------- tokens


def test_tokens_are_made_listed_and_revoked(run: Run, tmp_path: Path) -> None:
    Catalogue(tmp_path / "catalogue.sqlite").close()
    data = ("--data", str(tmp_path))
    secret = run("token", "create", "--tenant", "oil", "--label", "the desk", *data).out.strip()
    with Catalogue(tmp_path / "catalogue.sqlite") as catalogue:
        assert catalogue.tenant_of(secret) == "oil"
        [row] = catalogue.tokens("oil")
    listed = run("token", "list", "--tenant", "oil", *data).out
    assert row.id in listed
    assert "the desk" in listed
    assert secret not in listed
    run("token", "revoke", row.id, "--tenant", "oil", *data)
    with Catalogue(tmp_path / "catalogue.sqlite") as catalogue:
        assert catalogue.tenant_of(secret) is None
    with pytest.raises(TidingsError, match="oil has no"):
        run("token", "revoke", row.id, "--tenant", "oil", *data)
