"""Routes: subscriptions, and what they have waiting."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tidings.service import openapi
from tidings.service.context import Context
from tidings.service.problems import Problem, invalid
from tidings.service.pulling import read_cursor, read_last_event_id
from tidings.service.subscription_forms import (
    Form,
    patch_of,
    read_form,
    read_patch,
    read_position,
    refuse_unknown,
    written_subscription,
    written_time,
)
from tidings.store.catalogue import SubscriptionRow
from tidings.store.catalogue.rows import STATES

MAX_NOTIFICATIONS = 1_000  # in one answer
MAX_WAIT_SECONDS = 60.0  # of a long poll
MERGE_PATCH = "application/merge-patch+json"
_STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def router(context: Context) -> APIRouter:
    routes = APIRouter(prefix="/v1/subscriptions", tags=["subscriptions"])

    @routes.post(
        "", summary="Subscribe", status_code=201, openapi_extra=openapi.body(openapi.SUBSCRIPTION),
        responses=openapi.answers(409, 413, 415, _201="It gets every event that is published from now on"),
    )  # fmt: skip
    async def create(request: Request) -> Response:
        tenant = await context.tokens.tenant(request)
        form = read_form(await context.json(request), development=context.settings.development)
        return await _created(tenant, form)

    async def _created(tenant: str, form: Form) -> Response:
        row = await context.subscribing.create(tenant, form)
        secret = form.delivery.secret if form.delivery.made else None
        location = {"Location": f"/v1/subscriptions/{row.id}"}
        return JSONResponse(written_subscription(row, secret=secret), 201, location)

    @routes.get("", summary="The tenant's subscriptions, page by page", responses=openapi.answers())
    async def listed(
        request: Request, domain: str | None = None, label: str | None = None, search: str | None = None,
        state: str | None = None, after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:  # fmt: skip
        tenant = await context.tokens.tenant(request)
        if state is not None and state not in STATES:
            raise Problem(422, "invalid", f"state: there are {', '.join(STATES)}")
        if after is not None:
            read_cursor(after, "")
        for name, text in (("domain", domain), ("label", label), ("search", search)):
            if text is not None and ("\0" in text or not _is_text(text)):
                raise Problem(422, "invalid", f"{name}: has characters that nothing can have")
        page = await context.ask(
            lambda: context.catalogue.list(
                tenant, domain=domain, label=label, search=search, state=state, after=after, limit=limit
            )
        )
        return JSONResponse({"subscriptions": [written_subscription(row) for row in page.subscriptions],
                             "next": page.next})  # fmt: skip

    @routes.get("/{id}", summary="A subscription", responses=openapi.answers())
    async def found(request: Request, id: str) -> Response:
        row = await context.subscriptions.required(await context.tokens.tenant(request), id)
        return JSONResponse(written_subscription(row))

    @routes.put(
        "/{id}", summary="Subscribe under an id, or replace what is there",
        openapi_extra=openapi.body(openapi.SUBSCRIPTION),
        responses=openapi.answers(409, 413, 415, _201="Made", _200="Replaced"),
    )  # fmt: skip
    async def put(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        form = read_form(await context.json(request), id=id, development=context.settings.development)
        row = await context.subscriptions.find(tenant, id)
        if row is None:
            return await _created(tenant, form)
        if form.domain != row.domain:
            raise Problem(409, "conflict", f"a subscription stays in its domain, '{row.domain}'", pointer="/domain")
        if form.start != "latest":
            raise invalid("a start is for new subscriptions; leave it out, or give a new id", "/start")
        return await _changed(row, patch_of(form))

    async def _changed(row: SubscriptionRow, patch: Any) -> Response:
        changed = await context.subscribing.change(row, patch)
        made = patch.delivery is not None and patch.delivery.made and row.secret is None
        return JSONResponse(written_subscription(changed, secret=changed.secret if made else None))

    @routes.patch(
        "/{id}", summary="Change some of a subscription",
        openapi_extra=openapi.body(openapi.PATCH, MERGE_PATCH, "application/json"),
        responses=openapi.answers(409, 413, 415),
    )  # fmt: skip
    async def patched(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        body = await context.json(request, MERGE_PATCH)
        row = await context.subscriptions.required(tenant, id)
        return await _changed(row, read_patch(body, row, development=context.settings.development))

    @routes.delete("/{id}", summary="Unsubscribe", status_code=204, responses=openapi.answers())
    async def deleted(request: Request, id: str) -> Response:
        row = await context.subscriptions.required(await context.tokens.tenant(request), id)
        await context.subscribing.delete(row)
        return Response(status_code=204)

    @routes.get(
        "/{id}/notifications", summary="What waits; long poll", tags=["delivery"], responses=openapi.answers(409)
    )
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
        "/{id}/ack", summary="Acknowledge all up to a cursor", tags=["delivery"], status_code=204,
        openapi_extra=openapi.body(openapi.CURSOR), responses=openapi.answers(409, 413, 415),
    )  # fmt: skip
    async def acknowledged(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        body = await context.json(request)
        refuse_unknown(body, ("cursor",))
        end = await context.ask(lambda: context.reader.end)
        await context.pulling.acknowledge(tenant, id, body.get("cursor"), end)
        return Response(status_code=204)

    @routes.get(
        "/{id}/stream", summary="Server-Sent Events, resumed with Last-Event-ID", tags=["delivery"],
        responses=openapi.answers(409),
    )  # fmt: skip
    async def stream(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        last = read_last_event_id(request.headers.get("last-event-id"))
        if last is not None and last >= await context.ask(lambda: context.reader.end):
            raise Problem(400, "last-event-id", "Last-Event-ID is beyond the last event")
        pieces = await context.pulling.stream(tenant, id, last)
        return StreamingResponse(pieces, headers=_STREAM, media_type="text/event-stream")

    @routes.get(
        "/{id}/dead-letters", summary="What could not be delivered, and why", tags=["delivery"],
        responses=openapi.answers(),
    )  # fmt: skip
    async def dead_letters(
        request: Request, id: str, after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> Response:
        row = await context.subscriptions.required(await context.tokens.tenant(request), id)
        place = -1 if after is None else read_cursor(after, "")
        letters = await context.ask(context.mailboxes.dead_letters, row, place, limit + 1)
        shown = ",".join(
            f'{{"position":{letter.position},"reason":{_quoted(letter.reason)},"attempts":{letter.attempts},'
            f'"time":"{written_time(letter.time)}","event":{text or "null"}}}'
            for letter, text in letters[:limit]
        )
        next_ = f'"{letters[limit - 1][0].position}"' if len(letters) > limit else "null"
        return Response(f'{{"dead_letters":[{shown}],"next":{next_}}}', media_type="application/json")

    @routes.post(
        "/{id}/dead-letters:redrive", summary="Try to deliver dead letters once more", tags=["delivery"],
        openapi_extra=openapi.body(openapi.REDRIVE), responses=openapi.answers(413, 415),
    )  # fmt: skip
    async def redrive(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        body = await context.json(request)
        refuse_unknown(body, ("positions",))
        wanted = body.get("positions")
        if wanted is not None:
            if not isinstance(wanted, list):
                raise invalid("positions are a list of integers; leave them out for all", "/positions")
            wanted = [read_position(position, f"/positions/{at}") for at, position in enumerate(wanted)]
        row = await context.subscriptions.required(tenant, id)
        await context.ask(context.mailboxes.take_in_overflow, row)
        positions = await context.ask(context.deliveries.redrive, row.key, wanted)
        context.webhooks.changed(row)
        context.mailboxes.nudge(row.key)
        return JSONResponse({"positions": positions})

    return routes


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
