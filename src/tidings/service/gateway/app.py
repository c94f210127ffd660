"""The gateway's application: every route under one roof, with one form of errors.

data = DataDirectory("tidings-data")
app = create_app(data, Settings())      # an ASGI application; opens its stores when it starts
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any, cast

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidings.errors import TidingsError
from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway import delivery_routes as delivery
from tidings.service.gateway import domain_routes as domains
from tidings.service.gateway import filter_routes as filters
from tidings.service.gateway import health_routes as health
from tidings.service.gateway import openapi, problems
from tidings.service.gateway import subscription_routes as subscriptions
from tidings.service.gateway.gateway_context import Context, opened_context
from tidings.service.gateway.gateway_settings import Settings
from tidings.service.gateway.problems import Problem, problem_of
from tidings.service.gateway.security import host_of

_DESCRIPTION = "Content-based publish/subscribe: every event meets the subscriptions whose SQL filter it satisfies."


def create_app(data: DataDirectory, settings: Settings | None = None) -> FastAPI:
    """The application over a data directory, which one gateway at a time has open."""
    chosen = settings or Settings()
    late = _Late()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened_context(data, chosen) as context:
            app.state.context = late.context = context
            yield

    app = openapi.DocumentedApp(
        title="Tidings",
        version=version("tidings"),
        description=_DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    openapi.install_docs(app)
    for routes in (domains, subscriptions, delivery, filters, health):
        app.include_router(routes.router(cast(Context, late)))
    problems.install(app)
    app.add_middleware(_Shortcut, context=cast(Context, late))
    app.add_middleware(_Doorkeeper, hosts=chosen.hosts)  # the last to be added is the first to be asked
    return app


class _Late:
    """Stands for the context in routes, which are there before it is open."""

    context: Context

    def __getattr__(self, name: str) -> Any:
        if name == "context":
            raise AttributeError("the gateway is not open; run the application with its lifespan")
        return getattr(self.context, name)


def context_of(app: FastAPI) -> Context:
    context: Any = app.state.context
    assert isinstance(context, Context)
    return context


class _Doorkeeper:
    """The first to see a request: turns away those for other hosts, and counts answers."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context: Context = scope["app"].state.context

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.metrics.answered(message["status"])
            await send(message)

        # A page in a browser can send requests to this machine under a name of its own; it cannot choose ours.
        if "*" not in self._hosts and host_of(Headers(scope=scope)) not in self._hosts:
            refused = Problem(421, "host", "this service is not that of the host in the request; it is started with "
                              "the names that it goes by")  # fmt: skip
            await refused.response()(scope, receive, counted)
            return
        await self._app(scope, receive, counted)


class _Shortcut:
    """Publishing past the framework: to find its route and call it takes twice as long as all that publishing does."""

    _PATH = re.compile(r"/v1/domains/([^/]+)/events")

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await domains.publish(self._context, Request(scope, receive), found.group(1))
        except (Problem, TidingsError) as error:
            problem = problem_of(error)
            assert problem is not None
            response = problem.response()
        await response(scope, receive, send)
