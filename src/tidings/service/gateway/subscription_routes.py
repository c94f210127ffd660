"""Routes: subscriptions, made, found, changed and ended."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.service.gateway import openapi
from tidings.service.gateway.fetching import read_cursor
from tidings.service.gateway.gateway_context import Context
from tidings.service.gateway.problems import Problem, invalid
from tidings.service.gateway.subscription_forms import (
    Form,
    Patch,
    patch_of,
    read_form,
    read_patch,
    written_subscription,
)
from tidings.store.catalogue import SubscriptionRow
from tidings.store.catalogue.rows import STATES

MERGE_PATCH = "application/merge-patch+json"


def router(context: Context) -> APIRouter:
    routes = APIRouter(prefix="/v1/subscriptions", tags=["subscriptions"])

    @routes.post(
        "", summary="Subscribe", status_code=201, openapi_extra=openapi.body(openapi.SUBSCRIPTION),
        responses=openapi.answers(409, 413, 415, _201="It gets every event that is published from now on"),
    )  # fmt: skip
    async def create(request: Request) -> Response:
        tenant = await context.tokens.tenant(request)
        form = read_form(await context.json(request, tenant), dev_webhooks=context.settings.dev_webhooks)
        return await _created(context, tenant, form)

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
        form = read_form(await context.json(request, tenant), id=id, dev_webhooks=context.settings.dev_webhooks)
        row = await context.subscriptions.find(tenant, id)
        if row is None:
            return await _created(context, tenant, form)
        if form.domain != row.domain:
            raise Problem(409, "conflict", f"a subscription stays in its domain, '{row.domain}'", pointer="/domain")
        if form.start != "latest":
            raise invalid("a start is for new subscriptions; leave it out, or give a new id", "/start")
        return await _changed(context, row, patch_of(form))

    @routes.patch(
        "/{id}", summary="Change some of a subscription",
        openapi_extra=openapi.body(openapi.PATCH, MERGE_PATCH, "application/json"),
        responses=openapi.answers(409, 413, 415),
    )  # fmt: skip
    async def patched(request: Request, id: str) -> Response:
        tenant = await context.tokens.tenant(request)
        body = await context.json(request, tenant, MERGE_PATCH)
        row = await context.subscriptions.required(tenant, id)
        return await _changed(context, row, read_patch(body, row, dev_webhooks=context.settings.dev_webhooks))

    @routes.delete("/{id}", summary="Unsubscribe", status_code=204, responses=openapi.answers())
    async def deleted(request: Request, id: str) -> Response:
        row = await context.subscriptions.required(await context.tokens.tenant(request), id)
        await context.subscribing.delete(row)
        return Response(status_code=204)

    return routes


async def _created(context: Context, tenant: str, form: Form) -> Response:
    row = await context.subscribing.create(tenant, form)
    secret = form.delivery.secret if form.delivery.made else None
    location = {"Location": f"/v1/subscriptions/{row.id}"}
    return JSONResponse(written_subscription(row, secret=secret), 201, location)


async def _changed(context: Context, row: SubscriptionRow, patch: Patch) -> Response:
    changed = await context.subscribing.change(row, patch)
    made = patch.delivery is not None and patch.delivery.made and row.secret is None
    return JSONResponse(written_subscription(changed, secret=changed.secret if made else None))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
