"""The gateway's application: every route, with one form of errors.

data = DataDirectory("tidings-data")
app = create_app(data, Settings())      # an ASGI application; opens its stores when it starts
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidings.errors import TidingsError
from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway import (
    delivery_routes,
    domain_routes,
    filter_routes,
    health_routes,
    openapi,
    problems,
    subscription_routes,
)
from tidings.service.gateway.gateway_context import Context, opened_context
from tidings.service.gateway.gateway_settings import Settings
from tidings.service.gateway.problems import Problem, problem_of
from tidings.service.gateway.security import host_of

_DESCRIPTION = "Content-based publish/subscribe: every event meets the subscriptions whose SQL filter it satisfies."


def create_app(data: DataDirectory, settings: Settings | None = None) -> FastAPI:
    """Returns the application over a data directory, which only one gateway at a time may have open."""
    chosen = settings or Settings()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened_context(data, chosen) as context:
            app.state.context = context
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
    for module in (domain_routes, subscription_routes, delivery_routes, filter_routes, health_routes):
        app.include_router(module.routes)
    problems.install(app)
    app.add_middleware(_PublishShortcut)
    app.add_middleware(_Doorkeeper, hosts=chosen.hosts)  # the last one added is called first
    return app


class _Doorkeeper:
    """The first to see a request: refuses those addressed to other hosts, and counts responses."""

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
            detail = "this service does not serve the host in the request; start it with the names that it has"
            await Problem(421, "host", detail).response()(scope, receive, counted)
            return
        await self._app(scope, receive, counted)


class _PublishShortcut:
    """Publishes without the framework, whose routing takes twice as long as all that publishing does."""

    _PATH = re.compile(r"/v1/domains/([^/]+)/events")

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await domain_routes.publish(Request(scope, receive), found.group(1))
        except (Problem, TidingsError) as error:
            problem = problem_of(error)
            assert problem is not None
            response = problem.response()
        await response(scope, receive, send)
