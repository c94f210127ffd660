"""A service in a few lines and in memory, for what a client has to get along with: it can be made to fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

TOKEN = "tdg_secret"
Trouble = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


class FakeService:
    """Keeps domains, events and subscriptions; matches every event with every subscription of its domain."""

    def __init__(self) -> None:
        self.domains: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.subscriptions: dict[str, dict[str, Any]] = {}
        self.cursors: dict[str, int] = {}
        self.acked: list[str] = []  # cursors
        self.requests: list[httpx2.Request] = []
        self.troubles: list[Trouble | None] = []  # of the next requests, None where all goes well
        self.lost_answers = 0  # of the next requests, which are carried out

    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self.handle)

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, Exception):
            raise trouble
        if isinstance(trouble, httpx2.Response):
            return trouble
        if trouble is not None:
            return trouble(request)
        answer = self.answer(request)
        if self.lost_answers:
            self.lost_answers -= 1
            raise httpx2.ReadError("connection reset", request=request)
        return answer

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "no such token")
        body = json.loads(request.content) if request.content else None
        match request.method, request.url.path.strip("/").split("/")[1:]:
            case "GET", ["health"]:
                return httpx2.Response(503, json={"driver": "down"})
            case "PUT", ["domains", name]:
                self.domains[name] = {"name": name, **body}
                return httpx2.Response(200, json=self.domains[name])
            case "GET", ["domains"]:
                return httpx2.Response(200, json={"domains": list(self.domains.values())})
            case "GET", ["domains", name]:
                if name not in self.domains:
                    return problem(404, "no such domain", f"there is no domain '{name}'")
                return httpx2.Response(200, json=self.domains[name])
            case "POST", ["domains", name, "events"]:
                events = body if "batch" in request.headers["content-type"] else [body]
                return httpx2.Response(200, json={"positions": [self.append(name, event) for event in events]})
            case "POST", ["subscriptions"]:
                if body["id"] in self.subscriptions:
                    return problem(409, "there already", pointer="/id")
                if "!" in body["filter"]:
                    return problem(422, "no filter", "unexpected '!' at column 7", pointer="/filter", column=7)
                self.subscriptions[body["id"]] = {"state": "active", "filter_from": len(self.log), **body}
                return httpx2.Response(201, json=self.subscriptions[body["id"]])
            case "GET", ["subscriptions"]:
                return self.page(request)
            case method, ["subscriptions", id_, *rest]:
                return self.of_subscription(method, id_, rest, request, body)
            case "POST", ["filters:test"]:
                return httpx2.Response(200, json={"matches": None, "text": "? NULL", "explanation": {"got": body}})
            case "POST", ["filters:backtest"]:
                return httpx2.Response(202, headers={"location": "/v1/jobs/7"}, json={"id": "7"})
            case "GET", ["jobs", "7"]:
                rate = [{"time": "2026-01-01T00:00:00Z", "count": 2}]
                return httpx2.Response(200, json={"count": 2, "events": 9, "rate": rate, "samples": [{"price": 9}]})
            case "GET", ["events", position, "matches"]:
                near = {"subscription": "b", "failing": 1, "text": "price is 1: 2 below 3"}
                found = {"position": int(position), "event": {}, "matched": ["a"], "nearly": [near]}
                return httpx2.Response(200, json=found)
        return problem(404, "no such place", request.url.path)

    def append(self, domain: str, event: dict[str, Any]) -> int:
        for position, (other, there) in enumerate(self.log):
            if (other, there["source"], there["id"]) == (domain, event["source"], event["id"]):
                return position
        self.log.append((domain, event))
        return len(self.log) - 1

    def page(self, request: httpx2.Request) -> httpx2.Response:
        """Two at a time."""
        ids = sorted(self.subscriptions)
        after = request.url.params.get("after")
        left = [id_ for id_ in ids if after is None or id_ > after]
        listed = [self.subscriptions[id_] for id_ in left[:2]]
        return httpx2.Response(200, json={"subscriptions": listed, "next": left[1] if len(left) > 2 else None})

    def of_subscription(
        self, method: str, id_: str, rest: list[str], request: httpx2.Request, body: Any
    ) -> httpx2.Response:
        if id_ not in self.subscriptions:
            return problem(404, "no such subscription", f"there is no subscription '{id_}'")
        found = self.subscriptions[id_]
        match method, rest:
            case "GET", []:
                return httpx2.Response(200, json=found)
            case "PATCH", []:
                found |= body
                return httpx2.Response(200, json=found)
            case "DELETE", []:
                del self.subscriptions[id_]
                return httpx2.Response(204)
            case "GET", ["notifications"]:
                limit = int(request.url.params["limit"])
                waiting = self.waiting(id_, self.cursors.get(id_, -1))[:limit]
                cursor = str(waiting[-1]["position"]) if waiting else None
                return httpx2.Response(200, json={"notifications": waiting, "cursor": cursor})
            case "POST", ["ack"]:
                self.acked.append(body["cursor"])
                if not body["cursor"].startswith("again:"):
                    self.cursors[id_] = int(body["cursor"])
                return httpx2.Response(204)
            case "GET", ["stream"]:
                after = int(request.headers.get("last-event-id", "-1"))
                return httpx2.Response(
                    200,
                    headers={"content-type": "text/event-stream"},
                    stream=Pieces(self.sent(id_, after)),
                )
            case "GET", ["dead-letters"]:
                return httpx2.Response(
                    200, json={"dead_letters": [{"position": 3, "reason": "410 Gone"}], "next": None}
                )
            case "POST", ["dead-letters:redrive"]:
                return httpx2.Response(202, json={"redriven": len(body.get("positions", [3]))})
        return problem(404, "no such place", request.url.path)

    def waiting(self, id_: str, after: int) -> list[dict[str, Any]]:
        found = self.subscriptions[id_]
        return [
            {"position": position, "event": event}
            for position, (domain, event) in enumerate(self.log)
            if domain == found["domain"] and position >= found["filter_from"] and position > after
        ]

    def sent(self, id_: str, after: int) -> Iterator[bytes]:
        """Two notifications, in awkward pieces; then the line breaks."""
        yield b"retry: 0\n\n: a comment\n"
        for text in self.sent_whole(id_, after)[:2]:
            for byte in text:
                yield bytes([byte])
        raise httpx2.ReadError("connection reset")

    def sent_whole(self, id_: str, after: int = -1) -> list[bytes]:
        waiting = [(one["position"], json.dumps(one, ensure_ascii=False)) for one in self.waiting(id_, after)]
        return [f"id: {at}\r\nevent: notification\r\ndata: {one}\r\n\r\n".encode() for at, one in waiting]


class Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that comes in pieces, to whichever client asks."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces

    async def __aiter__(self) -> Any:
        for piece in self.pieces:
            yield piece


def problem(status: int, title: str, detail: str = "", **more: Any) -> httpx2.Response:
    headers = {"content-type": "application/problem+json"}
    if status in (429, 503):
        headers["retry-after"] = "3"
    written = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return httpx2.Response(status, headers=headers, content=json.dumps(written))
