"""Routes: how the service does, for who watches it."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.service import openapi
from tidings.service.context import Context
from tidings.service.filters import backtests_under_way
from tidings.service.metrics import CONTENT_TYPE
from tidings.service.problems import Problem


def router(context: Context) -> APIRouter:
    routes = APIRouter(tags=["operation"])
    began = time.time()

    @routes.get("/v1/health", summary="Whether the service serves; needs no token", responses=openapi.answers())
    async def health(request: Request) -> Response:
        """With a token it tells of the tenant's domains too."""
        driver = context.lag.driver
        told: dict[str, Any] = {
            "status": "ok" if driver == "running" else "degraded",
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
            if tenant == context.settings.operator:
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
        "reached": said.get("reached"),
        "lag_events": context.lag.of(key),
        "events_per_second": said.get("events_per_second"),
        "batch_seconds": said.get("batch_seconds"),
    }
