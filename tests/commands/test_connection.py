"""Every command that talks to a service has help with examples, and errors that say what is wrong."""

from __future__ import annotations

import pytest

from tidings.errors import TidingsError

from .conftest import Run


@pytest.mark.parametrize(
    "command", ["publish", "subscribe", "pull", "tail", "explain", "domain", "subscriptions", "token"]
)
def test_help_teaches_with_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.status == 0
    assert f"  tidings {command} " in ran.out


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
def test_an_error_says_what_is_wrong(run: Run, arguments: tuple[str, ...], reason: str) -> None:
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
def test_wrong_use_has_status_2_and_a_reason(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    ran = run(*arguments)
    assert ran.status == 2
    assert reason in " ".join(ran.err.replace("│", " ").split())
