"""Routes: how the service does, for who watches it."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.service.gateway import openapi
from tidings.service.gateway.driver_lag import problems_of
from tidings.service.gateway.filter_routes import backtests_under_way
from tidings.service.gateway.gateway_context import Context
from tidings.service.gateway.gateway_metrics import CONTENT_TYPE
from tidings.service.gateway.problems import Problem

REASONS = 100  # domains whose problems are shown


def router(context: Context) -> APIRouter:
    routes = APIRouter(tags=["operation"])
    began = time.time()

    @routes.get("/v1/health", summary="Whether the service serves; needs no token", responses=openapi.answers())
    async def health(request: Request) -> Response:
        """`degraded` says why in `reasons`; with a token it shows the tenant's domains too."""
        driver = context.lag.driver
        problems = problems_of(context.lag.status) if driver == "running" else {}
        reasons = [] if driver == "running" else [f"the driver is {driver}"]
        reasons += [f"the streams of {len(problems)} domains are not running"] if problems else []
        told: dict[str, Any] = {
            "status": "degraded" if reasons else "ok",
            "reasons": reasons,
            "gateway": {"state": "running", "seconds": round(time.time() - began, 1)},
            "driver": {"state": driver},
            "log": {"start": context.log_end.start, "end": context.log_end.position},
        }
        if "authorization" in request.headers:
            tenant = await context.tokens.tenant(request)
            rows = await context.ask(context.catalogue.domains, tenant)
            told["domains"] = {row.name: _domain(context, row.key) for row in rows}
            context.use.note(tenant, "backtests", await context.ask(backtests_under_way, context, tenant))
            told["quotas"] = context.use.of(tenant)
            is_operator = tenant == context.settings.operator
            shown = problems if is_operator else {row.key: problems[row.key] for row in rows if row.key in problems}
            told["reasons"] += [f"{key}: {why}" for key, why in list(shown.items())[:REASONS]]
            if is_operator:
                held = context.retention.held_by
                told["log"]["held"] = None if held is None else {"position": held.position, "by": held.who}
                told["log"]["held_bytes"] = context.retention.held_bytes
                told["log"]["given_up"] = [
                    {"position": need.position, "by": need.who} for need in context.retention.given_up[:20]
                ]
                problem = context.lag.problem or context.lag.status.get("problem")
                told["driver"] |= {"problem": problem, "pid": context.lag.status.get("pid")}
        return JSONResponse(told)

    @routes.get("/metrics", summary="Prometheus metrics; for the operator's tokens", responses=openapi.answers(403))
    async def metrics(request: Request) -> Response:
        if await context.tokens.tenant(request) != context.settings.operator:
            raise Problem(403, "forbidden", "metrics tell of all tenants; they are for the operator's tokens")
        return Response(context.metrics.text(), media_type=CONTENT_TYPE)

    return routes


def _domain(context: Context, key: str) -> dict[str, Any]:
    said = context.lag.domain(key)
    return {
        "state": said.get("state", "unknown"),
        "problem": said.get("problem"),
        "shared": bool(said.get("shared")),
        "reached": said.get("reached"),
        "lag_events": context.lag.of(key),
        "events_per_second": said.get("events_per_second"),
        "batch_seconds": said.get("batch_seconds"),
    }
