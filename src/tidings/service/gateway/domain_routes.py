"""Routes: what events look like, and publishing them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.errors import DomainError
from tidings.model.domain import Domain
from tidings.service.data.data_directory import NAME, domain_key
from tidings.service.gateway import openapi
from tidings.service.gateway.api_models import DomainBody, written_time
from tidings.service.gateway.gateway_context import Context
from tidings.service.gateway.problems import Problem, invalid, missing
from tidings.store.catalogue import DomainRow


def router(context: Context) -> APIRouter:
    routes = APIRouter(prefix="/v1/domains", tags=["domains"])

    @routes.get("", summary="The tenant's domains", responses=openapi.answers())
    async def listed(request: Request) -> Response:
        tenant = await context.tokens.tenant(request)
        rows = await context.ask(context.catalogue.domains, tenant)
        return JSONResponse({"domains": [written_domain(row) for row in rows]})

    @routes.get("/{domain}", summary="A domain", responses=openapi.answers())
    async def found(request: Request, domain: str) -> Response:
        tenant = await context.tokens.tenant(request)
        known = await context.domains.required(tenant, domain)
        return JSONResponse(written_domain(known.row))

    @routes.put(
        "/{domain}", summary="Describe a domain, or confirm one that was inferred",
        openapi_extra=openapi.body(DomainBody),
        responses=openapi.answers(409, 413, 415, _201="Described", _200="Described anew"),
    )  # fmt: skip
    async def put(request: Request, domain: str) -> Response:
        tenant = await context.tokens.tenant(request)
        described = read_domain(domain, await context.read(request, tenant, DomainBody))
        domain_key(tenant, domain)
        row, new = await context.domain_changes.describe(tenant, described)
        location = {"Location": f"/v1/domains/{domain}"} if new else None
        return JSONResponse(written_domain(row), 201 if new else 200, location)

    @routes.delete(
        "/{domain}", summary="Remove a domain that has no subscriptions", status_code=204,
        responses=openapi.answers(409),
    )  # fmt: skip
    async def deleted(request: Request, domain: str) -> Response:
        tenant = await context.tokens.tenant(request)
        gone = bool(NAME.fullmatch(domain)) and await context.ask(context.catalogue.delete_domain, tenant, domain)
        if not gone:
            raise missing("domain", domain)
        context.domains.removed(tenant, domain)
        context.mailboxes.forget(domain_key(tenant, domain))
        context.lag.forget(domain_key(tenant, domain))
        return Response(status_code=204)

    @routes.post(
        "/{domain}/events", summary="Publish events", tags=["events"], openapi_extra=openapi.events_body(),
        responses=openapi.answers(409, 413, 415, 429, _200="The positions of the events, which are on the disk"),
    )  # fmt: skip
    async def published(request: Request, domain: str) -> Response:
        return await publish(context, request, domain)

    return routes


async def publish(context: Context, request: Request, domain: str) -> Response:
    """Append the events of a request to a domain of its tenant."""
    return await context.publisher.publish(request, await context.tokens.tenant(request), domain)


def read_domain(name: str, body: DomainBody) -> Domain:
    if "name" in body.model_fields_set and body.name != name:
        raise invalid(f"the name in the address is '{name}'; leave it out here, or give the same", "/name")
    try:
        return Domain.from_json(body.definition(name))
    except DomainError as error:
        raise Problem(422, "domain", str(error), pointer="/attributes") from None


def written_domain(row: DomainRow) -> dict[str, Any]:
    definition = json.loads(row.definition)
    return {
        **definition,
        "name": row.name,
        "inferred": row.inferred,
        "created": written_time(row.created),
        "updated": written_time(row.updated),
    }
