"""Both clients say and hear the same, try again where that is safe, and tell what is wrong."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest

from tidings import Domain, EventError, TidingsError
from tidings.client import AsyncClient, Client, Retries, ServiceError, UnreachableError
from tidings.model.domain import Attribute

from .fake_service import TOKEN, FakeService, Pieces, problem

QUOTES = {"attributes": [{"name": "price", "type": "double"}]}


class AnyClient(Protocol):
    """Either client, called in one way; what it iterates over is read up to a count."""

    slept: list[float]

    def __call__(self, method: str, *arguments: Any, first: int | None = None, **more: Any) -> Any: ...


class Waiting:
    def __init__(self, service: FakeService, **options: Any) -> None:
        self.slept: list[float] = []
        options = {"token": TOKEN} | options
        self.client = Client(transport=service.transport(), sleep=self.slept.append, **options)

    def __call__(self, method: str, *arguments: Any, first: int | None = None, **more: Any) -> Any:
        answer = getattr(self.client, method)(*arguments, **more)
        return list(itertools.islice(answer, first)) if inspect.isgenerator(answer) else answer


class Awaiting:
    def __init__(self, service: FakeService, **options: Any) -> None:
        self.slept: list[float] = []
        self.service, self.options = service, {"token": TOKEN} | options

    def __call__(self, method: str, *arguments: Any, first: int | None = None, **more: Any) -> Any:
        return asyncio.run(self.call(method, arguments, first, more))

    async def call(self, method: str, arguments: tuple[Any, ...], first: int | None, more: dict[str, Any]) -> Any:
        async with AsyncClient(transport=self.service.transport(), sleep=self.sleep, **self.options) as client:
            answer = getattr(client, method)(*arguments, **more)
            if not inspect.isasyncgen(answer):
                return await answer
            taken: list[Any] = []
            async for item in answer:
                taken.append(item)
                if len(taken) == first:
                    break
            await answer.aclose()
            return taken

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture(params=[Waiting, Awaiting], ids=["Client", "AsyncClient"])
def client(request: pytest.FixtureRequest, service: FakeService) -> AnyClient:
    made: AnyClient = request.param(service)
    return made


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TIDINGS_URL", "TIDINGS_TOKEN", "TIDINGS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def sent(service: FakeService) -> list[Any]:
    return [json.loads(request.content) for request in service.requests if request.content]


# ---------------------------------------------------------------------- the same in both


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        public = (item for item in vars(kind).items() if not item[0].startswith("_"))
        return {name: list(inspect.signature(method).parameters) for name, method in public if callable(method)}

    waiting, awaiting = methods(Client), methods(AsyncClient)
    assert {("aclose" if name == "close" else name): found for name, found in waiting.items()} == awaiting


@pytest.mark.parametrize(
    "form",
    [
        QUOTES,
        [{"name": "price", "type": "double"}],
        [Attribute("price", "double")],
        Domain("another name", [Attribute("price", "double")]),
    ],
)
def test_a_domain_is_put_in_every_form_of_it(client: AnyClient, service: FakeService, form: Any) -> None:
    assert client("put_domain", "quotes", form).domain == Domain("quotes", [Attribute("price", "double")])
    assert sent(service) == [QUOTES]
    assert client("domain", "quotes").name == "quotes"
    assert [one.name for one in client("domains")] == ["quotes"]


def test_a_record_is_published_as_a_cloud_event_with_a_source_and_an_id(
    client: AnyClient, service: FakeService
) -> None:
    assert client("publish", "quotes", {"price": 8.5}, subject="AAPL") == 0
    [(_, event)] = service.log
    assert event["data"] == {"price": 8.5}
    assert event["source"]
    assert len(event["id"]) >= 32
    assert (event["specversion"], event["type"], event["subject"]) == ("1.0", "tidings.quotes", "AAPL")
    assert service.requests[-1].headers["content-type"] == "application/cloudevents+json"


def test_a_cloud_event_keeps_what_it_has(client: AnyClient, service: FakeService) -> None:
    event = {"specversion": "1.0", "id": "7", "source": "/mine", "type": "quote", "data": {"price": 1}, "mine": "x"}
    client("publish", "quotes", event)
    client("publish", "quotes", event, id="8", time=dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC))
    assert [event for _, event in service.log] == [event, event | {"id": "8", "time": "2026-01-02T03:04:05Z"}]


@pytest.mark.parametrize("kind", [Waiting, Awaiting])
def test_a_client_s_source_is_that_of_events_without_one(service: FakeService, kind: Any) -> None:
    client = kind(service, source="/scales/3")
    own = {"specversion": "1.0", "source": "/mine", "data": {}}
    client("publish", "quotes", {"source": "an attribute"})
    client("publish", "quotes", own)
    client("publish_many", "quotes", [{"price": 1}, own])
    assert [event["source"] for _, event in service.log] == ["/scales/3", "/mine", "/scales/3", "/mine"]
    assert service.log[0][1]["data"] == {"source": "an attribute"}


def test_many_events_go_in_batches_of_events_and_bytes_and_keep_their_order(
    client: AnyClient, service: FakeService
) -> None:
    events = [{"price": number} for number in range(25)]
    assert client("publish_many", "quotes", iter(events), batch_events=10) == list(range(25))
    assert [len(body) for body in sent(service)] == [10, 10, 5]
    assert [event["data"] for _, event in service.log] == events
    service.requests.clear()
    client("publish_many", "quotes", [{"text": "x" * 400}] * 5, batch_bytes=1200)
    assert [len(body) for body in sent(service)] == [2, 2, 1]
    assert client("publish_batches", "quotes", iter(events[:3]), batch_events=2) == [[30, 31], [32]]


def test_an_endless_source_of_events_is_read_only_as_far_as_needed(client: AnyClient, service: FakeService) -> None:
    endless = ({"price": number} for number in itertools.count())
    assert client("publish_batches", "quotes", endless, batch_events=5, first=2) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert len(service.log) <= 15


def test_numbers_stay_exact(client: AnyClient, service: FakeService) -> None:
    client("publish", "quotes", {"big": 2**53 + 1, "exact": Decimal("0.10000000000000000001")})
    assert b'"big":9007199254740993,"exact":0.10000000000000000001' in service.requests[-1].content


@pytest.mark.parametrize("event", [{"price": float("nan")}, {"price": object()}, {"text": "\ud800"}, 7, None])
def test_what_json_cannot_say_is_refused_before_anything_is_sent(
    client: AnyClient, service: FakeService, event: Any
) -> None:
    with pytest.raises(EventError):
        client("publish", "quotes", event)
    with pytest.raises(EventError, match="row 1"):
        client("publish_many", "quotes", [{"price": 1}, event])
    assert not service.requests


def test_one_event_given_as_many_is_refused(client: AnyClient) -> None:
    with pytest.raises(ValueError, match="call publish"):
        client("publish_many", "quotes", {"price": 1})


# ---------------------------------------------------------------------- trying again


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_no_sooner_than_it_says(
    client: AnyClient, service: FakeService, status: int
) -> None:
    service.troubles = [problem(status, "busy"), problem(status, "busy")]
    assert client("publish", "quotes", {"price": 1}) == 0
    assert len(client.slept) == 2
    assert all(3 <= seconds <= 4 for seconds in client.slept)


def test_a_publish_whose_answer_was_lost_is_sent_again_and_is_there_once(
    client: AnyClient, service: FakeService
) -> None:
    service.lost_answers = 2
    assert client("publish_many", "quotes", [{"price": 1}, {"price": 2}]) == [0, 1]
    assert len(service.requests) == 3
    assert len({request.content for request in service.requests}) == 1
    assert len(service.log) == 2


def test_creating_a_subscription_whose_answer_was_lost_makes_one(client: AnyClient, service: FakeService) -> None:
    service.lost_answers = 1
    made = client("subscribe", "quotes", "price > 3")
    assert list(service.subscriptions) == [made.id]
    assert [request.method for request in service.requests] == ["POST", "POST", "GET"]


def test_an_id_that_is_taken_is_an_error_where_no_answer_was_lost(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "price > 3", id="mine")
    service.troubles = [httpx2.ConnectError("refused")]
    with pytest.raises(ServiceError) as caught:
        client("subscribe", "quotes", "price > 4", id="mine")
    assert (caught.value.status, caught.value.pointer) == (409, "/id")


def test_deleting_twice_because_an_answer_was_lost_is_deleting(client: AnyClient, service: FakeService) -> None:
    made = client("subscribe", "quotes", "price > 3")
    service.lost_answers = 1
    client("delete", made.id)
    with pytest.raises(ServiceError, match="404"):
        client("delete", made.id)


@pytest.mark.parametrize("kind", [Waiting, Awaiting])
def test_after_its_time_the_last_error_is_the_caller_s(service: FakeService, kind: Any) -> None:
    client = kind(service, retries=Retries(for_seconds=2.5))
    service.troubles = [problem(503, "busy", "the log is full")]
    with pytest.raises(ServiceError, match="503 busy: the log is full") as caught:
        client("publish", "quotes", {"price": 1})
    assert caught.value.retry_after == 3
    assert client.slept == []


@pytest.mark.parametrize("kind", [Waiting, Awaiting])
def test_a_service_that_is_not_there_is_named(service: FakeService, kind: Any) -> None:
    client = kind(service, url="http://127.0.0.1:7/", retries=Retries(for_seconds=0))
    service.troubles = [httpx2.ConnectError("Connection refused"), httpx2.ReadTimeout("")]
    with pytest.raises(UnreachableError, match=r"http://127.0.0.1:7: Connection refused; is `tidings serve` running"):
        client("publish", "quotes", {"price": 1})
    with pytest.raises(UnreachableError, match="ReadTimeout; the request may have been carried out"):
        client("publish", "quotes", {"price": 1})


def test_what_was_published_before_a_refusal_is_known(client: AnyClient, service: FakeService) -> None:
    service.troubles = [None, problem(422, "does not fit", "price is a text", pointer="/1/data/price")]
    with pytest.raises(ServiceError, match=r"422 does not fit: price is a text \(at /1/data/price\)") as caught:
        client("publish_many", "quotes", [{"price": number} for number in range(6)], batch_events=2)
    assert caught.value.published == [0, 1]


def test_a_refusal_is_not_tried_again(client: AnyClient, service: FakeService) -> None:
    with pytest.raises(ServiceError) as caught:
        client("subscribe", "quotes", "price !")
    assert (caught.value.status, caught.value.pointer, caught.value.column) == (422, "/filter", 7)
    assert len(service.requests) == 1


def test_an_error_that_is_no_problem_document_is_told_all_the_same(client: AnyClient, service: FakeService) -> None:
    service.troubles = [httpx2.Response(400, content=b"<html>\n Bad \xff request</html>")]
    with pytest.raises(ServiceError, match=r"400 the service refuses: <html> Bad . request</html>"):
        client("domain", "quotes")


# ---------------------------------------------------------------------- subscriptions and delivery


def test_a_subscription_says_what_was_asked_for(client: AnyClient, service: FakeService) -> None:
    made = client(
        "subscribe", "quotes", "price > 3", id="mine", mode="webhook", url="https://example.org/hook", secret="whsec_x",
        start=dt.datetime(2026, 1, 2, tzinfo=dt.UTC), expires=dt.datetime(2027, 1, 2, tzinfo=dt.UTC),
        labels={"team": "oil"}, paused=True,
    )  # fmt: skip
    assert sent(service) == [
        {
            "id": "mine",
            "domain": "quotes",
            "filter": "price > 3",
            "delivery": {"mode": "webhook", "url": "https://example.org/hook", "secret": "whsec_x"},
            "start": {"time": "2026-01-02T00:00:00Z"},
            "expires": "2027-01-02T00:00:00Z",
            "labels": {"team": "oil"},
            "paused": True,
        }
    ]
    assert (made.id, made.mode, made.url, made.labels) == (
        "mine",
        "webhook",
        "https://example.org/hook",
        {"team": "oil"},
    )


def test_a_start_is_a_position_a_time_or_a_word(client: AnyClient, service: FakeService) -> None:
    for start in ("latest", "earliest", 17):
        client("subscribe", "quotes", "TRUE", start=start)
    assert [body.get("start") for body in sent(service)] == [None, "earliest", {"position": 17}]
    with pytest.raises(ValueError, match="time zone"):
        client("subscribe", "quotes", "TRUE", start=dt.datetime(2026, 1, 2))


def test_only_a_webhook_has_a_url(client: AnyClient) -> None:
    with pytest.raises(ValueError, match="webhook"):
        client("subscribe", "quotes", "TRUE", url="https://example.org")
    with pytest.raises(ValueError, match="webhook"):
        client("subscribe", "quotes", "TRUE", mode="webhook")


def test_a_change_sends_what_changes(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine")
    service.requests.clear()
    assert client("change", "mine", filter="price > 4").filter == "price > 4"
    assert client("pause", "mine").paused
    assert not client("resume", "mine").paused
    client("change", "mine", expires=None, labels={"team": None})
    assert sent(service) == [
        {"filter": "price > 4"},
        {"paused": True},
        {"paused": False},
        {"expires": None, "labels": {"team": None}},
    ]
    with pytest.raises(ValueError, match="something"):
        client("change", "mine")


def test_lists_are_read_page_by_page(client: AnyClient, service: FakeService) -> None:
    for number in range(5):
        client("subscribe", "quotes", "TRUE", id=f"s{number}")
    service.requests.clear()
    assert [one.id for one in client("subscriptions", domain="quotes")] == ["s0", "s1", "s2", "s3", "s4"]
    assert [request.url.params.get("after") for request in service.requests] == [None, "s1", "s3"]


def test_an_odd_id_stays_one_part_of_the_path(client: AnyClient, service: FakeService) -> None:
    with pytest.raises(ServiceError, match="404"):
        client("subscription", "a/../b?c#d")
    assert service.requests[-1].url.raw_path == b"/v1/subscriptions/a%2F..%2Fb%3Fc%23d"
    with pytest.raises(ValueError, match="not a name"):
        client("delete", "..")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("publish", ("quotes", {"price": 1})),
        ("subscribe", ("quotes", "TRUE")),
        ("replace_subscription", ("mine", "quotes", "TRUE")),
        ("change", ("mine",)),
        ("backtest", ("quotes", "TRUE")),
    ],
)
def test_an_unknown_option_is_an_error_before_anything_is_sent(
    client: AnyClient, service: FakeService, method: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(TypeError, match="unexpected option 'modus'"):
        client(method, *arguments, modus="pull")
    assert service.requests == []


def test_pulling_and_acknowledging(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine")
    client("publish_many", "quotes", [{"price": number} for number in range(5)])
    pulled = client("pull", "mine", limit=2, wait=1.5)
    assert [(one.position, one.data) for one in pulled.notifications] == [(0, {"price": 0}), (1, {"price": 1})]
    assert dict(service.requests[-1].url.params) == {"limit": "2", "wait": "1.5"}
    client("ack", "mine", pulled.cursor)
    assert [one.position for one in client("pull", "mine").notifications] == [2, 3, 4]


def test_notifications_are_acknowledged_a_batch_at_a_time(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine")
    client("publish_many", "quotes", [{"price": number} for number in range(5)])
    taken = client("notifications", "mine", limit=2, first=3)
    assert [one.position for one in taken] == [0, 1, 2]
    assert service.cursors == {"mine": 1}, "the second batch was not dealt with wholly"
    assert [one.position for one in client("notifications", "mine", limit=2, follow=False)] == [2, 3, 4]
    assert service.cursors == {"mine": 4}


def test_a_stream_goes_on_after_the_last_event_when_the_line_breaks(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine", mode="sse")
    client("publish_many", "quotes", [{"name": "Zürich", "price": number} for number in range(5)])
    service.requests.clear()
    taken = client("stream", "mine", first=5)
    assert [(one.position, one.data["price"], one.data["name"]) for one in taken] == [
        (number, number, "Zürich") for number in range(5)
    ]
    assert [request.headers.get("last-event-id") for request in service.requests] == [None, "1", "3"]


def test_what_a_stream_brought_is_acknowledged_now_and_then(
    client: AnyClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.client.flows.ACK_SECONDS", 0.0)
    client("subscribe", "quotes", "TRUE", id="mine", mode="sse")
    client("publish_many", "quotes", [{"price": number} for number in range(5)])
    client("stream", "mine", first=4)
    assert service.cursors == {"mine": 2}, "the last was not dealt with when it stopped"


def test_a_stream_whose_window_is_full_is_acknowledged_at_once(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine", mode="sse")
    events = [b'id: %d\nevent: notification\ndata: {"position":%d,"event":{}}\n\n' % (at, at) for at in range(4)]
    again = b'event: notification\ndata: {"position":%d,"event":{},"cursor":"again:%d"}\n\n'
    window = b'event: window\ndata: {"unacknowledged":5}\n\n'
    pieces = [again % (7, 7) + again % (9, 9) + b"".join(events[:3]), window, events[3]]
    service.troubles = [httpx2.Response(200, stream=Pieces(iter(pieces)))]
    taken = client("stream", "mine", first=6)
    assert [(one.position, one.cursor) for one in taken] == [
        (7, "again:7"), (9, "again:9"), (0, "0"), (1, "1"), (2, "2"), (3, "3"),
    ]  # fmt: skip
    assert service.acked == ["2", "again:7,9"]


def test_a_stream_that_its_user_acknowledges_names_no_last_event(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine", mode="sse")
    client("publish_many", "quotes", [{"price": number} for number in range(2)])
    service.requests.clear()
    window = b'event: window\ndata: {"unacknowledged":2}\n\n'
    service.troubles = [None, httpx2.Response(200, stream=Pieces(iter([window])))]

    def third(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Pieces(iter([*service.sent_whole("mine"), b"event: end\ndata: {}\n\n"])))

    service.troubles.append(third)
    assert [one.position for one in client("stream", "mine", ack=False)] == [0, 1], "they came again, and were known"
    assert [request.headers.get("last-event-id") for request in service.requests] == [None, None, None]
    assert service.acked == []


def test_a_stream_ends_with_its_subscription(client: AnyClient, service: FakeService) -> None:
    end = b'event: end\ndata: {"reason":"the subscription was deleted"}\n\n'
    service.troubles = [httpx2.Response(200, stream=Pieces(iter([b"retry: 5\n\n", end])))]
    assert client("stream", "mine") == []


def test_a_webhook_s_secret_is_known_even_if_the_answer_was_lost(client: AnyClient, service: FakeService) -> None:
    service.lost_answers = 1
    made = client("subscribe", "quotes", "TRUE", mode="webhook", url="https://example.org/hook")
    assert made.secret.startswith("whsec_")
    assert made.secret == sent(service)[-1]["delivery"]["secret"]
    assert made.secret not in repr(made)


def test_a_stream_comes_back_to_a_service_that_was_away(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine", mode="sse")
    client("publish", "quotes", {"price": 1})
    service.troubles = [httpx2.ConnectError("refused"), problem(503, "starting"), httpx2.ReadError("reset")]
    assert [one.position for one in client("stream", "mine", first=1)] == [0]
    assert len(client.slept) >= 3


def test_a_stream_of_no_subscription_is_an_error(client: AnyClient) -> None:
    with pytest.raises(ServiceError, match="there is no subscription 'mine'"):
        client("stream", "mine")


def test_dead_letters_are_listed_and_redriven(client: AnyClient, service: FakeService) -> None:
    client("subscribe", "quotes", "TRUE", id="mine")
    assert [(one.position, one.reason) for one in client("dead_letters", "mine")] == [(3, "410 Gone")]
    client("redrive", "mine", [3])
    assert sent(service)[-1] == {"positions": [3]}


# ---------------------------------------------------------------------- filters and health


def test_a_filter_is_tested_with_exact_numbers(client: AnyClient, service: FakeService) -> None:
    found = client("test_filter", "quotes", "price > 'ü'", {"price": Decimal("1.10")})
    assert (found.matches, found.text) == (None, "? NULL")
    assert service.requests[-1].content.endswith(b'"event":{"price":1.10}}')
    assert sent(service)[-1]["filter"] == "price > 'ü'"


def test_a_backtest_is_waited_for(client: AnyClient, service: FakeService) -> None:
    since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    found = client("backtest", "quotes", "price > 3", start=since, end=900, compare="mine")
    assert (found.count, found.events, found.rate) == (2, 9, (("2026-01-01T00:00:00Z", 2),))
    assert sent(service) == [
        {"domain": "quotes", "filter": "price > 3", "from": "2026-01-01T00:00:00Z", "to": 900, "compare": "mine"}
    ]


def test_a_job_elsewhere_is_not_followed_with_our_token(client: AnyClient, service: FakeService) -> None:
    service.troubles = [httpx2.Response(202, headers={"location": "http://evil.example/v1/jobs/7"})]
    with pytest.raises(ServiceError, match="where it will be"):
        client("backtest", "quotes", "price > 3")
    assert len(service.requests) == 1


def test_who_got_an_event_and_who_nearly_did(client: AnyClient) -> None:
    found = client("event_matches", 12)
    assert (found.position, found.matched) == (12, ("a",))
    assert [(near.subscription, near.failing) for near in found.nearly] == [("b", 1)]


def test_ill_health_is_an_answer(client: AnyClient, service: FakeService) -> None:
    found = client("health")
    assert not found.ok
    assert found.json == {"driver": "down"}
    assert len(service.requests) == 1


# ---------------------------------------------------------------------- settings


@pytest.fixture
def asked() -> list[httpx2.Request]:
    return []


def request_with(asked: list[httpx2.Request], **options: Any) -> httpx2.Request:
    def handle(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(200, json={"domains": []})

    with Client(transport=httpx2.MockTransport(handle), **options) as client:
        client.domains()
    return asked[-1]


def test_where_and_who_come_from_arguments_then_the_environment_then_a_file(
    asked: list[httpx2.Request], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "authorization" not in request_with(asked).headers
    assert str(asked[-1].url) == "http://127.0.0.1:8080/v1/domains"
    (tmp_path / "tidings-data").mkdir()
    (tmp_path / "tidings-data" / "token").write_text("local\n")
    assert request_with(asked).headers["authorization"] == "Bearer local"
    assert "authorization" not in request_with(asked, url="https://example.org").headers, "not to another machine"
    (tmp_path / "file").write_text("  of-file\n")
    monkeypatch.setenv("TIDINGS_TOKEN_FILE", str(tmp_path / "file"))
    assert request_with(asked).headers["authorization"] == "Bearer of-file"
    monkeypatch.setenv("TIDINGS_TOKEN", "of-environment")
    monkeypatch.setenv("TIDINGS_URL", "https://example.org/base/")
    assert request_with(asked).headers["authorization"] == "Bearer of-environment"
    assert str(asked[-1].url) == "https://example.org/base/v1/domains"
    assert request_with(asked, token_file=tmp_path / "file").headers["authorization"] == "Bearer of-file"
    assert request_with(asked, token="given", url="http://h:1").headers["authorization"] == "Bearer given"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"url": "localhost:8080"}, "no address of a service"),
        ({"url": "ftp://example.org"}, "no address of a service"),
        ({"token": "two words\n"}, "one word"),
        ({"token_file": "nowhere"}, "cannot read nowhere: No such file"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TidingsError, match=reason):
        Client(**options)


def test_a_redirect_does_not_get_the_token(client: AnyClient, service: FakeService) -> None:
    service.troubles = [httpx2.Response(307, headers={"location": "http://evil.example/"})]
    with pytest.raises(ServiceError, match="307"):
        client("domain", "quotes")
    assert len(service.requests) == 1
