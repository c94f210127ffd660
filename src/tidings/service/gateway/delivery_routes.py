"""Routes: what a subscription has waiting, fetched, acknowledged, streamed; and what could not be delivered."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.service.gateway import openapi
from tidings.service.gateway.api_models import AckBody, RedriveBody, written_time
from tidings.service.gateway.fetching import AckMode, EventStream, read_cursor, read_last_event_id
from tidings.service.gateway.gateway_context import Context
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.security import connection_of

MAX_NOTIFICATIONS = 1_000  # in one answer
MAX_WAIT_SECONDS = 60.0  # of a long poll
_STREAM_DESCRIPTION = """\
With `ack=client`, the default, a notification is received when you say so: `POST …/ack` with an event's id as the
cursor acknowledges all up to it, and `Last-Event-ID` does so when you reconnect. At most 1,000 notifications or 4 MiB
are sent and not acknowledged; then the stream says so in an event `window`, and waits. A dead letter that is
delivered once more has no id, and in its data the cursor that acknowledges it.

With `ack=auto` what was written to your socket counts as received: at most once behind the socket. It is for clients
that cannot acknowledge, such as curl.

A client that reads nothing for 30 s is disconnected.
"""


def router(context: Context) -> APIRouter:
    routes = APIRouter(prefix="/v1/subscriptions", tags=["delivery"])

    @routes.get("/{id}/notifications", summary="What waits; long poll", responses=openapi.answers(409))
    async def notifications(
        request: Request,
        id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_NOTIFICATIONS)] = 100,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
        after: str | None = None,
    ) -> Response:
        tenant = await context.tokens.tenant(request)
        place = None if after is None else read_cursor(after, "")
        return await context.pulling.poll(tenant, id, limit=limit, wait=wait, after=place)

    @routes.post(
        "/{id}/ack", summary="Acknowledge all up to a cursor", status_code=204,
        openapi_extra=openapi.body(AckBody), responses=openapi.answers(409, 413, 415),
    )  # fmt: skip
    async def acknowledged(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        body = await context.read(request, tenant, AckBody)
        end = await context.ask(lambda: context.reader.end)
        await context.pulling.acknowledge(tenant, id, body.cursor, end)
        return Response(status_code=204)

    @routes.get(
        "/{id}/stream", summary="Server-Sent Events, acknowledged by the client",
        description=_STREAM_DESCRIPTION, responses=openapi.answers(409),
    )  # fmt: skip
    async def stream(request: Request, id: str, ack: AckMode = "client") -> Response:
        tenant = await context.tokens.tenant(request)
        last = read_last_event_id(request.headers.get("last-event-id"))
        if last is not None and last >= await context.ask(lambda: context.reader.end):
            raise Problem(400, "last-event-id", "Last-Event-ID is beyond the last event")
        pieces = await context.streaming.stream(tenant, id, last, ack)
        if (connection := connection_of(request)) is not None:
            connection.hold(tenant, "streams")
        return EventStream(
            pieces, name=f"{tenant}/{id}", write_seconds=context.settings.stream_write_seconds
        )  # fmt: skip

    @routes.get(
        "/{id}/dead-letters", summary="What could not be delivered, and why",
        responses=openapi.answers(),
    )  # fmt: skip
    async def dead_letters(
        request: Request, id: str, after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> Response:
        row = await context.subscriptions.required(await context.tokens.tenant(request), id)
        place = -1 if after is None else read_cursor(after, "")
        letters, more = await context.ask(context.mailboxes.dead_letters, row, place, limit)
        shown = ",".join(
            f'{{"position":{letter.position},"reason":{_quoted(letter.reason)},"attempts":{letter.attempts},'
            f'"time":"{written_time(letter.time)}","event":{text or "null"}}}'
            for letter, text in letters
        )
        next_ = f'"{letters[-1][0].position}"' if more else "null"
        return Response(f'{{"dead_letters":[{shown}],"next":{next_}}}', media_type="application/json")

    @routes.post(
        "/{id}/dead-letters:redrive", summary="Try to deliver dead letters once more",
        openapi_extra=openapi.body(RedriveBody), responses=openapi.answers(413, 415),
    )  # fmt: skip
    async def redrive(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        body = await context.read(request, tenant, RedriveBody)
        row = await context.subscriptions.required(tenant, id)
        await context.ask(context.mailboxes.take_in_overflow, row)
        positions = await context.ask(context.deliveries.redrive, row.key, body.positions)
        context.webhooks.changed(row)
        context.mailboxes.nudge(row.key)
        return JSONResponse({"positions": positions})

    return routes


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
