"""XML over HTTP: documents and feeds become events that paths can ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.xml import document

CLOUD = {"specversion": "1.0", "id": "1", "source": "/test", "type": "note"}
HEADERS = {f"ce-{name}": value for name, value in CLOUD.items()}
RSS = b"""<rss version="2.0"><channel><title>News</title>
  <item><guid>1</guid><title>One</title></item><item><guid>2</guid><title>Two</title></item></channel></rss>"""


def post(gateway: Any, body: Any, kind: str = "application/xml", **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return gateway.client.post("/v1/domains/news/events", content=content, headers={"Content-Type": kind, **headers})


def event_at(gateway: Any, position: int) -> Any:
    return gateway.client.get(f"/v1/events/{position}/matches").json()["event"]


@pytest.mark.parametrize("kind", ["application/xml", "text/xml", "application/note+xml", "text/xml; charset=utf-8"])
def test_a_document_is_an_event_with_one_attribute(gateway: Any, kind: str) -> None:
    answer = post(gateway, "<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>".encode("latin-1"), kind)
    assert answer.status_code == 200, answer.text
    (position,) = answer.json()["positions"]
    assert event_at(gateway, position) == {"document": "<a>é</a>"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
def test_a_document_is_parsed_once_whatever_its_encoding(
    gateway: Any, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    parse = document.parse_bytes
    monkeypatch.setattr(document, "parse_bytes", lambda *given: parsed.append(given) or parse(*given))
    declared = "" if "utf" in encoding else f"<?xml version='1.0' encoding='{encoding}'?>"
    (position,) = post(gateway, f"{declared}<a>é</a>".encode(encoding)).json()["positions"]
    assert event_at(gateway, position) == {"document": "<a>é</a>"}
    assert len(parsed) == 1


def test_a_cloud_event_may_have_xml_for_its_data(gateway: Any) -> None:
    (binary,) = post(gateway, b"<a/>", **HEADERS).json()["positions"]
    structured = {**CLOUD, "id": "2", "datacontenttype": "application/xml", "data": "<b/>"}
    (one,) = post(gateway, structured, "application/cloudevents+json").json()["positions"]
    (many,) = post(gateway, [structured | {"id": "3"}], "application/cloudevents-batch+json").json()["positions"]
    assert event_at(gateway, binary) == {**CLOUD, "datacontenttype": "application/xml", "data": {"document": "<a/>"}}
    assert [event_at(gateway, position)["data"] for position in (one, many)] == [{"document": "<b/>"}] * 2


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<a>", "not well-formed"),
        (b"<!DOCTYPE a><a/>", "document type"),
        (b"<a>" * 300 + b"</a>" * 300, "256 elements deep"),
        (b"\xff\xfe\x00", "not well-formed"),
        (b"", "not well-formed"),
    ],
)
def test_what_is_no_document_is_refused_with_a_reason(gateway: Any, body: bytes, says: str) -> None:
    for headers in ({}, HEADERS):
        answer = post(gateway, body, **headers)
        assert answer.status_code == 400
        assert says in answer.json()["detail"]
    structured = [{**CLOUD, "datacontenttype": "text/xml", "data": "<a>"}]
    answer = post(gateway, structured, "application/cloudevents-batch+json")
    assert (answer.status_code, answer.json()["pointer"]) == (400, "/0/data")


def test_a_feed_is_an_event_for_each_item_and_each_version_of_an_item_once(gateway: Any) -> None:
    first = post(gateway, RSS, "application/rss+xml").json()["positions"]
    assert len(first) == 2
    assert "<title>One</title>" in event_at(gateway, first[0])["data"]["document"]
    assert post(gateway, RSS, "application/rss+xml").json()["positions"] == first
    changed = post(gateway, RSS.replace(b"Two", b"Two and a half"), "application/rss+xml").json()["positions"]
    assert changed[0] == first[0]
    assert changed[1] > first[1]
    assert post(gateway, b"<html/>", "application/rss+xml").status_code == 400


def test_paths_are_asked_of_documents(gateway: Any) -> None:
    asked = {"filter": "xpath_boolean(document, '/a[b = 1]')", "event": {"document": "<a><b>1</b></a>"}}
    answer = gateway.client.post("/v1/filters:test", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["matches"] is True
