"""Routes: notifications, fetched, acknowledged and streamed; and dead letters."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tidings.service.gateway import openapi
from tidings.service.gateway.api_models import AckBody, RedriveBody, written_time
from tidings.service.gateway.fetching import AckMode, EventStream, read_cursor, read_last_event_id
from tidings.service.gateway.gateway_context import caller
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.security import connection_of

MAX_NOTIFICATIONS = 1_000  # in one response
MAX_WAIT_SECONDS = 60.0  # of a long poll
_STREAM_DESCRIPTION = """\
With `ack=client`, the default, a notification is received when you say so: `POST …/ack` with an event's id as the
cursor acknowledges all up to it, and `Last-Event-ID` does so when you reconnect. At most 1,000 notifications or 4 MiB
are sent and not acknowledged; then the stream says so in an event `window`, and waits. A dead letter that is
delivered again has no id; the cursor that acknowledges it is in its data.

With `ack=auto` what was written to your socket counts as received: at most once beyond the socket. It is for clients
that cannot acknowledge, such as curl.

A client that reads nothing for 30 s is disconnected.
"""

routes = APIRouter(prefix="/v1/subscriptions", tags=["delivery"])


@routes.get("/{id}/notifications", summary="What waits; long poll", responses=openapi.responses(409))
async def notifications(
    request: Request,
    id: str,
    limit: Annotated[int, Query(ge=1, le=MAX_NOTIFICATIONS)] = 100,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
    after: str | None = None,
) -> Response:
    context, tenant = await caller(request)
    place = None if after is None else read_cursor(after, "")
    return await context.fetching.poll(tenant, id, limit=limit, wait=wait, after=place)


@routes.post(
    "/{id}/ack",
    summary="Acknowledge all up to a cursor",
    status_code=204,
    **openapi.takes(AckBody, 409),
)
async def acknowledged(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, AckBody)
    end = await context.ask(lambda: context.reader.end)
    await context.fetching.acknowledge(tenant, id, body.cursor, end)
    return Response(status_code=204)


@routes.get(
    "/{id}/stream",
    summary="Server-Sent Events, acknowledged by the client",
    description=_STREAM_DESCRIPTION,
    response_class=StreamingResponse,
    responses=openapi.responses(409) | {200: {"content": {EventStream.media_type: {}}}},
)
async def stream(request: Request, id: str, ack: AckMode = "client") -> Response:
    context, tenant = await caller(request)
    last = read_last_event_id(request.headers.get("last-event-id"))
    if last is not None and last >= await context.ask(lambda: context.reader.end):
        raise Problem(400, "last-event-id", "Last-Event-ID is beyond the last event")
    pieces = await context.fetching.stream(tenant, id, last, ack)
    if (connection := connection_of(request)) is not None:
        connection.hold(tenant, "streams")
    return EventStream(pieces, name=f"{tenant}/{id}", write_seconds=context.settings.stream_write_seconds)


@routes.get("/{id}/dead-letters", summary="What could not be delivered, and why", responses=openapi.responses())
async def dead_letters(
    request: Request, id: str, after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    context, tenant = await caller(request)
    row = await context.subscriptions.required(tenant, id)
    place = -1 if after is None else read_cursor(after, "")
    letters, more = await context.ask(context.mailboxes.dead_letters, row, place, limit)
    shown = ",".join(
        f'{{"position":{letter.position},"reason":{json.dumps(letter.reason, ensure_ascii=False)},'
        f'"attempts":{letter.attempts},"time":"{written_time(letter.time)}","event":{text or "null"}}}'
        for letter, text in letters
    )
    next_ = f'"{letters[-1][0].position}"' if more else "null"
    return Response(f'{{"dead_letters":[{shown}],"next":{next_}}}', media_type="application/json")


@routes.post("/{id}/dead-letters:redrive", summary="Try to deliver dead letters again", **openapi.takes(RedriveBody))
async def redrive(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, RedriveBody)
    row = await context.subscriptions.required(tenant, id)
    await context.ask(context.mailboxes.take_in_overflow, row)
    positions = await context.ask(context.deliveries.redrive, row.key, body.positions)
    context.webhooks.changed(row)
    context.watch.nudge(row.key)
    return JSONResponse({"positions": positions})
