"""A receiver of webhooks that behaves as badly as it is told to."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from ..history.records import Delivery, Writer, now
from .workload import identified

BEHAVIOURS = ("well", "500", "slow", "hangs", "endless body", "redirects", "closes", "later")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A connection that breaks is what is tried here: its sender, or this receiver, was told to break it."""


class Receiver:
    """Listens on loopback. What it takes (answers 2xx) is written down; what it does not is the service's to repeat."""

    def __init__(self, writer: Writer) -> None:
        self.behaviour = "well"
        self.posts = 0
        self.gone: set[str] = set()  # subscriptions whose receiver answers 410, whatever else it does
        self.own: dict[str, str] = {}  # how the receivers of some subscriptions behave, whatever others do
        self.bad_signatures: list[str] = []
        self._writer = writer
        self._secrets: dict[str, tuple[str, str, str]] = {}  # by path: the subscription, its secret, its tenant
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.handle(self)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, subscription: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{subscription}"

    def expect(self, subscription: str, secret: str, tenant: str = "default") -> None:
        self._secrets[f"/{subscription}"] = (subscription, secret, tenant)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        asked = now()
        self.posts += 1
        body = request.rfile.read(int(request.headers["content-length"]))
        if request.path.removeprefix("/") in self.gone:
            return _answer(request, 410)
        behaviour = self.own.get(request.path.removeprefix("/"), self.behaviour)
        match behaviour:
            case "500":
                return _answer(request, 500)
            case "later":
                return _answer(request, 503, ("retry-after", "1"))
            case "redirects":
                return _answer(request, 307, ("location", self.url("elsewhere")))
            case "closes":
                request.close_connection = True
                return None
            case "hangs":
                time.sleep(20.0)  # longer than the service waits
                request.close_connection = True
                return None
            case "slow":
                time.sleep(1.0)
        if request.path not in self._secrets:
            return _answer(request, 503)  # it is only just being made
        subscription, secret, tenant = self._secrets[request.path]
        try:
            Webhook(secret).verify(body, {name.lower(): value for name, value in request.headers.items()})
        except Exception as error:
            self.bad_signatures.append(f"{subscription}: {error}")
            return _answer(request, 400)
        self._take(subscription, tenant, json.loads(body), asked, request.headers["webhook-id"])
        if behaviour == "endless body":
            return _answer_for_ever(request)
        return _answer(request, 204)

    def _take(self, subscription: str, tenant: str, posted: dict[str, Any], asked: float, message: str) -> None:
        """Before the answer: an answer that is lost on its way was received all the same."""
        notification = posted.get("data", posted)
        source, id_, record = identified(notification["event"])
        self._writer.write(
            Delivery(
                subscription,
                tenant,
                "webhook",
                f"{message}@{asked}",
                asked,
                now(),
                notification["position"],
                source,
                id_,
                record,
            )
        )


def _answer(request: BaseHTTPRequestHandler, status: int, *headers: tuple[str, str]) -> None:
    request.send_response(status)
    for name, value in (*headers, ("content-length", "0")):
        request.send_header(name, value)
    request.end_headers()


def _answer_for_ever(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("content-type", "text/plain")
    request.end_headers()
    request.close_connection = True
    try:
        while True:
            request.wfile.write(b"and on " * 1000)
    except OSError:
        return
