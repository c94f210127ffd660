"""Routes: what a filter makes of one event or of the past, and which filters an event matches now."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.errors import DomainError, EventError
from tidings.filter.syntax.parser import parse_filter
from tidings.matching.explain.explanation import explain
from tidings.model.event import read_record
from tidings.model.event_json import texts_of
from tidings.model.infer import infer_domain
from tidings.service.data.data_directory import parts_of_key, read_json
from tidings.service.gateway import openapi
from tidings.service.gateway.api_models import BacktestBody, FilterTestBody
from tidings.service.gateway.gateway_context import Context, caller
from tidings.service.gateway.problems import Problem, invalid, missing
from tidings.service.gateway.publishing import misfit
from tidings.store.catalogue import JobRow
from tidings.store.log.log_errors import LogRangeError

BACKTEST = "backtest"
NEAR = 5  # subscriptions that nearly matched, as reported with an event

routes = APIRouter(prefix="/v1", tags=["filters"])


@routes.post("/filters:test", summary="What a filter makes of one event, and why", **openapi.takes(FilterTestBody))
async def test(request: Request) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, FilterTestBody)
    if body.domain is not None:
        domain = (await context.domains.required(tenant, body.domain, pointer="/domain")).domain
    else:
        try:
            domain = infer_domain([body.event])
        except DomainError as error:
            raise invalid(str(error), "/event") from None
    return await context.ask(_test, body.filter, body.event, domain)


@routes.post(
    "/filters:backtest",
    summary="What a filter would have delivered in the past, on Spark",
    **openapi.takes(BacktestBody, _200="The result", _202="Under way: ask at Location"),
)
async def backtest(request: Request) -> Response:
    context, tenant = await caller(request)
    body = await context.read(request, tenant, BacktestBody)
    known = await context.domains.required(tenant, body.domain, pointer="/domain")
    await context.ask(parse_filter, body.filter, known.domain)
    wanted: dict[str, Any] = {"domain": known.row.name, "filter": body.filter}
    for name, place in (("from", body.first), ("to", body.end)):
        if place is not None:
            wanted[name] = await context.ask(_position_of, context, place)
    if wanted.get("from", 0) > wanted.get("to", 1 << 62):
        raise invalid("the end is before the beginning", "/to")
    if body.compare is not None:
        wanted["against"] = await _filter_of(context, tenant, body.compare, known.row.name)
    async with context.adding_jobs(tenant):
        context.use.note(tenant, "backtests", await context.ask(backtests_under_way, context, tenant))
        context.use.expect_below(tenant, "backtests")
        job = await context.ask(context.catalogue.add_job, BACKTEST, tenant, wanted)
    return await _result(context, tenant, job, context.settings.backtest_wait_seconds)


@routes.get(
    "/jobs/{id}",
    summary="The result of a backtest",
    responses=openapi.responses(_200="The result", _202="Under way: ask again"),
)
async def job(request: Request, id: str) -> Response:
    context, tenant = await caller(request)
    return await _result(context, tenant, id, 0.0)


@routes.get(
    "/events/{position}/matches",
    summary="Which subscriptions an event matches now, and which it nearly matches",
    tags=["events"],
    responses=openapi.responses(),
)
async def matches(request: Request, position: str) -> Response:
    context, tenant = await caller(request)
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
    matched, near = await context.compute(context.matches.of, known, logged.event, logged.position, NEAR)
    nearly = [{"subscription": miss.subscription, "failing": miss.failing, "text": str(miss)} for miss in near]
    text = texts_of([logged.event])[0]
    found = json.dumps({"matched": matched, "nearly": nearly}, ensure_ascii=False)
    return Response(f'{{"position":{logged.position},"event":{text},{found[1:]}', media_type="application/json")


def backtests_under_way(context: Context, tenant: str) -> int:
    """Returns how many backtests of a tenant the driver has not finished."""
    jobs = [job.id for job in context.catalogue.open_jobs() if (job.kind, job.tenant) == (BACKTEST, tenant)]
    return sum(not context.data.answer(id).exists() for id in jobs)


def _test(text: str, event: dict[str, Any], domain: Any) -> Response:
    tree = parse_filter(text, domain)
    try:
        record = read_record(event, domain)
    except EventError as error:
        problem = misfit(error, [event], False)
        problem.pointer = "/event" + (problem.pointer or "")
        raise problem from None
    explanation = explain(tree, record, text=text)
    return JSONResponse(
        {"matches": explanation.reason.outcome, "explanation": explanation.to_dict(), "text": str(explanation)}
    )


async def _filter_of(context: Context, tenant: str, id: str, domain: str) -> str:
    row = await context.subscriptions.required(tenant, id, pointer="/compare")
    if row.domain != domain:
        raise invalid(f"this subscription is of the domain '{row.domain}'", "/compare")
    return row.filter


def _position_of(context: Context, place: int | dt.datetime) -> int:
    """Returns a position; of a time, that of the first event at that time or later."""
    if isinstance(place, dt.datetime):
        return context.reader.position_at(place)
    return min(place, context.reader.end)


async def _result(context: Context, tenant: str, id: str, wait: float) -> Response:
    """Returns the result of a job as soon as it is there; 202 after `wait` seconds."""
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        row = await context.ask(_closed, context, id, tenant)
        if row is None or row.kind != BACKTEST:
            raise missing("job", id)
        if row.closed is not None:
            return _written_result(row)
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0 or context.fetching.closing:
            return JSONResponse({"job": id, "state": "under way"}, 202, {"Location": f"/v1/jobs/{id}"})
        await asyncio.sleep(min(left, 0.1))


def _closed(context: Context, id: str, tenant: str) -> JobRow | None:
    """Returns a job as it is now; an answer that the driver has written closes it."""
    if not id.isascii() or len(id) > 64 or not id.replace("_", "").isalnum():
        return None
    job = context.catalogue.job(id, tenant)
    if job is not None and job.kind == BACKTEST and job.closed is None:
        path = context.data.answer(id)
        answer = read_json(path)
        if answer is not None:
            context.catalogue.close_job(id, answer)
            path.unlink(missing_ok=True)
            job = context.catalogue.job(id, tenant)
    return job


def _written_result(job: JobRow) -> Response:
    answer = dict(job.answer or {"done": False, "reason": "the job was given up"})
    if answer.pop("done", False):
        return JSONResponse(answer)
    reason = str(answer.get("reason", "the reason is unknown"))
    if answer.get("kind") == "request":
        raise Problem(422, "backtest", reason)
    raise Problem(503, "backtest", f"the backtest failed: {reason}", headers={"Retry-After": "10"})
