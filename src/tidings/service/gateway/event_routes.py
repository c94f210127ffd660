"""Route: what became of an event, by the subscriptions as they are now."""

from __future__ import annotations

import json

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidings.model.event_json import texts_of
from tidings.service.data.data_directory import parts_of_key
from tidings.service.gateway import openapi
from tidings.service.gateway.gateway_context import Context
from tidings.service.gateway.problems import missing
from tidings.store.log.log_errors import LogRangeError

NEAR = 5  # subscriptions that nearly matched, which are told of


def router(context: Context) -> APIRouter:
    routes = APIRouter(prefix="/v1/events", tags=["events"])

    @routes.get(
        "/{position}/matches", summary="Who got an event, and who nearly did",
        responses=openapi.answers(),
    )  # fmt: skip
    async def matches(request: Request, position: str) -> Response:
        tenant = await context.tokens.tenant(request)
        if not (position.isascii() and position.isdigit() and len(position) < 19):
            raise missing("event", position)
        try:
            logged = await context.ask(context.reader.event, int(position))
        except LogRangeError:
            raise missing("event", position) from None
        owner, name = parts_of_key(logged.domain)
        known = await context.domains.find(owner, name) if owner == tenant else None
        if known is None:
            raise missing("event", position)
        matched, near = await context.ask(context.matching.ask, known, logged.event, logged.position, NEAR)
        nearly = [{"subscription": miss.subscription, "failing": miss.failing, "text": str(miss)} for miss in near]
        text = texts_of([logged.event])[0]
        told = json.dumps({"matched": matched, "nearly": nearly}, ensure_ascii=False)
        return Response(
            f'{{"position":{logged.position},"event":{text},{told[1:]}', media_type="application/json"
        )  # fmt: skip

    return routes
