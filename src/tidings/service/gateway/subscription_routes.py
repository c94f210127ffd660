"""Routes: subscriptions, created, listed, changed and deleted."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.service.gateway import openapi
from tidings.service.gateway.api_models import SubscriptionBody, SubscriptionPatch, written_time
from tidings.service.gateway.fetching import read_cursor
from tidings.service.gateway.gateway_context import Context, caller
from tidings.service.gateway.problems import Problem, invalid, shown
from tidings.store.catalogue import SubscriptionRow
from tidings.store.catalogue.rows import STATES

MERGE_PATCH = "application/merge-patch+json"


routes = APIRouter(prefix="/v1/subscriptions", tags=["subscriptions"])


@routes.post(
    "",
    summary="Subscribe",
    status_code=201,
    **openapi.takes(SubscriptionBody, 409, _201="It gets every event that is published from now on"),
)
async def create(request: Request) -> Response:
    context, tenant = await caller(request)
    return await _created(context, tenant, await context.read(request, tenant, SubscriptionBody))


@routes.get("", summary="The tenant's subscriptions, page by page", responses=openapi.responses())
async def listed(
    request: Request,
    domain: str | None = None,
    label: str | None = None,
    search: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    context, tenant = await caller(request)
    if state is not None and state not in STATES:
        raise Problem(422, "invalid", f"state: there are {', '.join(STATES)}")
    if after is not None:
        read_cursor(after, "")
    for name, text in (("domain", domain), ("label", label), ("search", search)):
        if text is not None and ("\0" in text or not _is_text(text)):
            raise Problem(422, "invalid", f"{name}: has NUL or invalid Unicode, which nothing has")
    page = await context.ask(
        lambda: context.catalogue.list(
            tenant, domain=domain, label=label, search=search, state=state, after=after, limit=limit
        )
    )
    rows = [written_subscription(row) for row in page.subscriptions]
    return JSONResponse({"subscriptions": rows, "next": page.next})


@routes.get("/{id}", summary="A subscription", responses=openapi.responses())
async def found(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    row = await context.subscriptions.required(tenant, id)
    return JSONResponse(written_subscription(row))


@routes.put(
    "/{id}",
    summary="Subscribe under an id, or replace what is there",
    **openapi.takes(SubscriptionBody, 409, _201="Created", _200="Replaced"),
)
async def put(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, SubscriptionBody, id=id)
    if body.id != id:
        raise invalid(f"the id in the address is {shown(id)}; leave it out here, or give the same", "/id")
    row = await context.subscriptions.find(tenant, id)
    if row is None:
        return await _created(context, tenant, body)
    if body.domain != row.domain:
        raise Problem(409, "conflict", f"a subscription stays in its domain, '{row.domain}'", pointer="/domain")
    if body.start != "latest":
        raise invalid("a start is for new subscriptions; leave it out, or give a new id", "/start")
    return await _changed(context, row, body)


@routes.patch(
    "/{id}",
    summary="Change some of a subscription",
    **openapi.takes(SubscriptionPatch, 409, media_types=(MERGE_PATCH, "application/json")),
)
async def patched(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, SubscriptionPatch, MERGE_PATCH)
    return await _changed(context, await context.subscriptions.required(tenant, id), body)


@routes.delete("/{id}", summary="Unsubscribe", status_code=204, responses=openapi.responses())
async def deleted(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    row = await context.subscriptions.required(tenant, id)
    await context.subscribing.delete(row)
    return Response(status_code=204)


async def _created(context: Context, tenant: str, body: SubscriptionBody) -> Response:
    row = await context.subscribing.create(tenant, body)
    secret = row.secret if body.delivery is not None and body.delivery.secret is None else None
    location = {"Location": f"/v1/subscriptions/{row.id}"}
    return JSONResponse(written_subscription(row, secret=secret), 201, location)


async def _changed(context: Context, row: SubscriptionRow, body: SubscriptionBody | SubscriptionPatch) -> Response:
    changed = await context.subscribing.change(row, body)
    was_made = row.secret is None and (body.delivery is None or body.delivery.secret is None)
    return JSONResponse(written_subscription(changed, secret=changed.secret if was_made else None))


def written_subscription(row: SubscriptionRow, *, secret: str | None = None) -> dict[str, Any]:
    """Returns a subscription as JSON. A secret that was made here is shown once."""
    delivery: dict[str, Any] = {"mode": row.delivery}
    if row.url is not None:
        delivery["url"] = row.url
    if secret is not None:
        delivery["secret"] = secret
    if row.old_secret_until is not None and row.old_secret_until > time.time_ns() // 1000:
        delivery["old_secret_until"] = written_time(row.old_secret_until)
    first = row.filters[0] if row.filters else None
    subscription = {
        "id": row.id,
        "domain": row.domain,
        "filter": row.filter,
        "select": row.select,
        "delivery": delivery,
        "start": "latest" if first is None or first.replay_from is None else {"position": first.replay_from},
        "expires": None if row.expires is None else written_time(row.expires),
        "labels": row.labels,
        "paused": row.paused,
        "state": row.state,
        "filter_from": row.filter_from,
        "created": written_time(row.created),
        "updated": written_time(row.updated),
    }
    problems = {"disabled": row.disabled, "failed": row.failed, "suspended": row.suspended}
    return subscription | {name: reason for name, reason in problems.items() if reason is not None}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
