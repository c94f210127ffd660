"""The OpenAPI document, and the page `/v1/docs` that shows it with files from this machine only.

Bodies are described by the models that read them (`api_models`); those of published events are described here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, Response

from tidings.service.gateway.api_models import (
    AckBody,
    BacktestBody,
    DomainBody,
    FilterTestBody,
    RedriveBody,
    SubscriptionBody,
    SubscriptionPatch,
)
from tidings.service.gateway.event_formats import BATCH, LINES, ONE, PLAIN
from tidings.service.gateway.problems import MEDIA_TYPE, missing

DOCS = "/v1/docs"
_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
# Nothing on the page may come from, or go to, another machine.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)
_REFERENCE = "#/components/schemas/{model}"
_EVERYWHERE = (400, 401, 404, 405, 408, 421, 422, 429, 431, 500, 503)
_TITLES = {
    400: "Malformed, or an event that does not fit its domain",
    401: "No token, or an unknown one",
    403: "Not allowed for this tenant",
    404: "Does not exist, or belongs to another tenant",
    405: "This address does not take this method",
    408: "The request came too slowly",
    409: "Contradicts what is there",
    413: "Too large",
    415: "Unsupported media type",
    421: "Addressed to another host",
    422: "Valid JSON with an invalid value",
    429: "A quota, which is named, is used up; or too fast",
    431: "The request's line and headers are too large",
    500: "A mistake of the service",
    503: "Busy: try again later",
}


class ProblemBody(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str
    pointer: str = Field("", description="JSON pointer to what is wrong in the body")
    column: int = Field(0, description="in a filter's text, from 1")
    limit: str = Field("", description="the quota or limit that was reached")
    value: float = Field(0, description="what it allows")


_BODIES: tuple[type[BaseModel], ...] = (
    AckBody,
    BacktestBody,
    DomainBody,
    FilterTestBody,
    ProblemBody,
    RedriveBody,
    SubscriptionBody,
    SubscriptionPatch,
)
_EVENT: dict[str, Any] = {"type": "object"}
_TEXT: dict[str, Any] = {"type": "string"}
_CLOUD_EVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        **dict.fromkeys(("id", "source", "type"), _TEXT),
        "data": {"type": ["object", "null"]},
    },
}
_EVENTS = {
    PLAIN: {"schema": {"oneOf": [_EVENT, {"type": "array", "items": _EVENT}]}},
    ONE: {"schema": _CLOUD_EVENT},
    BATCH: {"schema": {"type": "array", "items": _CLOUD_EVENT}},
    LINES[0]: {"schema": _TEXT},
}


class DocumentedApp(FastAPI):
    """An application whose document has the schemas of our bodies, which the framework does not read."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            _, schemas = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_REFERENCE)
            document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def takes(
    model: type[BaseModel], *statuses: int, media_types: Sequence[str] = (PLAIN,), **described: str
) -> dict[str, Any]:
    """Returns the parts of an operation that describe its body and its responses."""
    content = {media_type: {"schema": _schema(model)} for media_type in media_types}
    return _operation(content, statuses, described)


def takes_events(*statuses: int, **described: str) -> dict[str, Any]:
    """Returns the same for an operation that publishes."""
    return _operation(_EVENTS, statuses, described)


def _operation(content: dict[str, Any], statuses: Sequence[int], described: dict[str, str]) -> dict[str, Any]:
    body = {"requestBody": {"required": True, "content": content}}
    return {"openapi_extra": body, "responses": responses(*statuses, 413, 415, **described)}


def responses(*statuses: int, **described: str) -> dict[int | str, dict[str, Any]]:
    """Returns the part of an operation that describes its responses: errors, and those that are described."""
    content = {MEDIA_TYPE: {"schema": _schema(ProblemBody)}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": _TITLES[status], "content": content} for status in sorted({*statuses, *_EVERYWHERE})
    }
    for status in (408, 429, 503):
        found[status]["headers"] = {"Retry-After": {"description": "Seconds, if waiting helps", "schema": _TEXT}}
    return found | {int(name.removeprefix("_")): {"description": text} for name, text in described.items()}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    assert model in _BODIES
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def install_docs(app: FastAPI) -> None:
    """Serves the page and its files."""

    async def page() -> HTMLResponse:
        answer = get_swagger_ui_html(
            openapi_url=app.openapi_url or "",
            title=f"{app.title}: the interface",
            swagger_js_url=f"{DOCS}/swagger-ui-bundle.js",
            swagger_css_url=f"{DOCS}/swagger-ui.css",
            swagger_favicon_url=f"{DOCS}/favicon.png",
            swagger_ui_parameters={"validatorUrl": None},
        )
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer

    async def file(name: str) -> Response:
        if name not in _FILES:
            raise missing("file", name)
        content = (files("fastapi_offline") / "static" / name).read_bytes()
        return Response(content, media_type=_FILES[name], headers={"Cache-Control": "max-age=86400"})

    app.add_api_route(DOCS, page, include_in_schema=False)
    app.add_api_route(DOCS + "/{name}", file, include_in_schema=False)
