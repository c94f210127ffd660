"""Routes: the state of the service, for those who watch it."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tidings.service.gateway import openapi
from tidings.service.gateway.driver_lag import DRIVER, SHARED
from tidings.service.gateway.filter_routes import backtests_under_way
from tidings.service.gateway.gateway_context import Context, caller
from tidings.service.gateway.gateway_metrics import CONTENT_TYPE
from tidings.service.gateway.problems import Problem

REASONS = 100  # domains whose problems are shown
_GENERAL = {  # what everybody is told; the operator is told the reason
    DRIVER: "the driver has a problem",
    SHARED: "the stream that small domains share is not running, or has a problem",
}
_GIVEN_UP = 20  # needs that are not met any more, as shown to the operator

routes = APIRouter(tags=["operation"])


@routes.get("/v1/health", summary="Whether the service serves; needs no token", responses=openapi.responses())
async def health(request: Request) -> Response:
    """`degraded` has its `reasons`; with a token it shows the tenant's domains too."""
    context: Context = request.app.state.context
    driver = context.lag.driver
    problems = context.lag.problems()
    reasons = [] if driver == "running" else [f"the driver is {driver}"]
    reasons += [_GENERAL[name] for name in _GENERAL if name in problems]
    if domains := len(problems.keys() - _GENERAL.keys()):
        reasons.append(f"the streams of {domains} domains are not running, or have a problem")
    state: dict[str, Any] = {
        "status": "degraded" if reasons else "ok",
        "reasons": reasons,
        "gateway": {"state": "running", "seconds": round(time.time() - context.began, 1)},
        "driver": {"state": driver},
        "log": {"start": context.log_end.start, "end": context.log_end.position},
    }
    if "authorization" in request.headers:
        tenant = await context.tokens.tenant(request)
        rows = await context.ask(context.catalogue.domains, tenant)
        state["domains"] = {row.name: _domain(context, row.key) for row in rows}
        context.use.note(tenant, "backtests", await context.ask(backtests_under_way, context, tenant))
        state["quotas"] = context.use.of(tenant)
        is_operator = tenant == context.settings.operator
        shown = problems if is_operator else {row.key: problems[row.key] for row in rows if row.key in problems}
        state["reasons"] += [f"{key}: {why}" for key, why in list(shown.items())[:REASONS]]
        if is_operator:
            state["log"] |= _held_log(context)
            problem = context.lag.problem or context.lag.status.get("problem")
            state["driver"] |= {"problem": problem, "pid": context.lag.status.get("pid")}
    return JSONResponse(state)


@routes.get(
    "/metrics",
    summary="Prometheus metrics; for the operator's tokens",
    response_class=PlainTextResponse,
    responses=openapi.responses(403),
)
async def metrics(request: Request) -> Response:
    context, tenant = await caller(request)
    if tenant != context.settings.operator:
        raise Problem(403, "forbidden", "metrics are about all tenants; they are for the operator's tokens")
    return Response(context.metrics.text(), media_type=CONTENT_TYPE)


def _held_log(context: Context) -> dict[str, Any]:
    held, given_up = context.retention.held_by, context.retention.given_up[:_GIVEN_UP]
    return {
        "held": None if held is None else {"position": held.position, "by": held.who},
        "held_bytes": context.retention.held_bytes,
        "given_up": [{"position": need.position, "by": need.who} for need in given_up],
    }


def _domain(context: Context, key: str) -> dict[str, Any]:
    status = context.lag.domain(key)
    return {
        "state": status.get("state", "unknown"),
        "problem": status.get("problem"),
        "shared": bool(status.get("shared")),
        "reached": status.get("reached"),
        "lag_events": context.lag.of(key),
        "events_per_second": status.get("events_per_second"),
        "batch_seconds": status.get("batch_seconds"),
    }
