"""Routes: what events look like, and publishing them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.errors import DomainError, did_you_mean
from tidings.model.domain import Domain
from tidings.service.data.data_directory import NAME, domain_key
from tidings.service.gateway import openapi
from tidings.service.gateway.api_models import DomainBody, written_time
from tidings.service.gateway.gateway_context import caller
from tidings.service.gateway.problems import Problem, invalid, missing
from tidings.store.catalogue import DomainRow
from tidings.systems.interface import AUTO, systems

routes = APIRouter(prefix="/v1/domains", tags=["domains"])


@routes.get("", summary="The tenant's domains", responses=openapi.responses())
async def listed(request: Request) -> Response:
    context, tenant = await caller(request)
    rows = await context.ask(context.catalogue.domains, tenant)
    return JSONResponse({"domains": [written_domain(row) for row in rows]})


@routes.get("/{domain}", summary="A domain", responses=openapi.responses())
async def found(request: Request, domain: str) -> Response:
    context, tenant = await caller(request)
    return JSONResponse(written_domain((await context.domains.required(tenant, domain)).row))


@routes.put(
    "/{domain}",
    summary="Describe a domain, or confirm one that was inferred",
    **openapi.takes(DomainBody, 409, _201="Created", _200="Replaced"),
)
async def put(request: Request, domain: str) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, DomainBody)
    described, placement = read_domain(domain, body), read_placement(body)
    domain_key(tenant, domain)
    row, new = await context.domain_changes.describe(tenant, described, placement)
    location = {"Location": f"/v1/domains/{domain}"} if new else None
    return JSONResponse(written_domain(row), 201 if new else 200, location)


@routes.delete(
    "/{domain}",
    summary="Remove a domain that has no subscriptions",
    status_code=204,
    responses=openapi.responses(409),
)
async def deleted(request: Request, domain: str) -> Response:
    context, tenant = await caller(request)
    gone = await context.ask(context.catalogue.delete_domain, tenant, domain) if NAME.fullmatch(domain) else None
    if gone is None:
        raise missing("domain", domain)
    context.domains.removed(gone)
    context.mailboxes.forget(domain_key(tenant, domain))
    context.lag.forget(domain_key(tenant, domain))
    return Response(status_code=204)


@routes.post(
    "/{domain}/events",
    summary="Publish events",
    tags=["events"],
    **openapi.takes_events(409, _200="The positions of the events, which are on the disk"),
)
async def publish(request: Request, domain: str) -> Response:
    context, tenant = await caller(request)
    return await context.publisher.publish(request, tenant, domain)


def read_domain(name: str, body: DomainBody) -> Domain:
    if "name" in body.model_fields_set and body.name != name:
        raise invalid(f"the name in the address is '{name}'; leave it out here, or give the same", "/name")
    try:
        return Domain.from_json(body.definition(name))
    except DomainError as error:
        raise Problem(422, "domain", str(error), pointer="/attributes") from None


def read_placement(body: DomainBody) -> str | None:
    """Returns the placement that a domain asks for; None if that is the service's choice."""
    if body.placement == AUTO:
        return None
    if body.placement not in systems():
        known = [AUTO, *systems()]
        raise invalid(f"there is no placement '{body.placement}'; {did_you_mean(body.placement, known)}", "/placement")
    return body.placement


def written_domain(row: DomainRow) -> dict[str, Any]:
    """Returns a domain as JSON."""
    return {
        **json.loads(row.definition),
        "name": row.name,
        "placement": row.placement or AUTO,
        "inferred": row.inferred,
        "created": written_time(row.created),
        "updated": written_time(row.updated),
    }
