"""The OpenAPI document, and the page `/v1/docs` that shows it with files from this machine only."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

from tidings.service.gateway.event_formats import BATCH, LINES, ONE, PLAIN
from tidings.service.gateway.problems import MEDIA_TYPE, missing

_TEXT: dict[str, Any] = {"type": "string"}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT,
        "pointer": {"type": "string", "description": "JSON pointer to what is wrong in the body"},
        "column": {"type": "integer", "description": "of a filter's text, from 1"},
        "limit": {"type": "string", "description": "the quota or limit that was reached"},
        "value": {"type": "number", "description": "what it allows"},
    },
}  # fmt: skip
_TITLES = {
    400: "Malformed, or an event that cannot be",
    401: "No token, or none that is known",
    403: "Not for this tenant",
    404: "Not there, or another tenant's",
    405: "This address does not take this method",
    408: "Too slow: the request did not come in its time",
    409: "Contradicts what is there",
    413: "Too large",
    415: "A media type that is not taken",
    421: "Addressed to a host that this is not",
    422: "JSON that cannot be meant",
    429: "Beyond a quota, which is named, or too fast",
    431: "The request's line and headers are too large",
    500: "Our mistake",
    503: "Busy: try again later",
}

_ATTRIBUTE = {
    "type": "object",
    "required": ["name", "type"],
    "properties": {
        "name": _TEXT, "type": {"type": "string", "examples": ["double", "string", "timestamp"]}, "min": {}, "max": {},
        "precision": {}, "unit": _TEXT, "allowed": {"type": "array", "items": {}},
    },
    "additionalProperties": False,
}  # fmt: skip
DOMAIN: dict[str, Any] = {
    "type": "object",
    "required": ["attributes"],
    "properties": {
        "name": _TEXT,
        "attributes": {"type": "array", "items": _ATTRIBUTE},
        "indices": {"type": "array", "items": {"type": "array", "items": _TEXT}},
    },
    "additionalProperties": False,
}
_DELIVERY: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {
        "mode": {"enum": ["pull", "sse", "webhook"]},
        "url": {"type": "string", "format": "uri"},
        "secret": {"type": "string", "writeOnly": True},
    },
    "additionalProperties": False,
}
_PLACE = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "format": "date-time"}]}
_CHANGEABLE: dict[str, Any] = {
    "filter": {"type": "string", "examples": ["price < 100 AND exchange = 'NYSE'"]},
    "select": {
        "enum": ["document", "nodes", None],
        "default": "document",
        "description": "What is delivered: the event, or the nodes that the filter's paths over XML select in it",
    },
    "delivery": _DELIVERY,
    "expires": {"type": ["string", "null"], "format": "date-time"},
    "labels": {"type": ["object", "null"], "additionalProperties": {"type": ["string", "null"]}},
    "paused": {"type": "boolean"},
}
SUBSCRIPTION: dict[str, Any] = {
    "type": "object",
    "required": ["domain", "filter"],
    "properties": {
        "id": _TEXT,
        "domain": _TEXT,
        **_CHANGEABLE,
        "start": {
            "oneOf": [
                {"enum": ["latest", "earliest"]},
                {"type": "object", "required": ["position"], "properties": {"position": {"type": "integer"}}},
                {
                    "type": "object",
                    "required": ["time"],
                    "properties": {"time": {"type": "string", "format": "date-time"}},
                },
            ]
        },
    },
    "additionalProperties": False,
}
# A null takes away what is there, and does nothing where nothing is (RFC 7396).
_PATCHED = {
    **_CHANGEABLE,
    "delivery": {
        **_DELIVERY,
        "properties": {name: {"anyOf": [one, {"type": "null"}]} for name, one in _DELIVERY["properties"].items()},
        "additionalProperties": {"type": "null"},
    },
    "paused": {"type": ["boolean", "null"]},
}
PATCH: dict[str, Any] = {"type": "object", "properties": _PATCHED, "additionalProperties": False}
CURSOR: dict[str, Any] = {
    "type": "object",
    "required": ["cursor"],
    "properties": {"cursor": _TEXT},
    "additionalProperties": False,
}
REDRIVE: dict[str, Any] = {
    "type": "object",
    "properties": {"positions": {"type": ["array", "null"], "items": {"type": "integer"}}},
    "additionalProperties": False,
}
TEST: dict[str, Any] = {
    "type": "object",
    "required": ["filter", "event"],
    "properties": {"domain": _TEXT, "filter": _TEXT, "event": {"type": "object"}},
    "additionalProperties": False,
}
BACKTEST: dict[str, Any] = {
    "type": "object",
    "required": ["domain", "filter"],
    "properties": {"domain": _TEXT, "filter": _TEXT, "from": _PLACE, "to": _PLACE, "compare": _TEXT},
    "additionalProperties": False,
}
_EVENT: dict[str, Any] = {"type": "object"}
_CLOUD_EVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"}, "id": _TEXT, "source": _TEXT, "type": _TEXT,
        "data": {"type": ["object", "null"]},
    },
}  # fmt: skip
_EVENTS = {
    PLAIN: {"schema": {"oneOf": [_EVENT, {"type": "array", "items": _EVENT}]}},
    ONE: {"schema": _CLOUD_EVENT},
    BATCH: {"schema": {"type": "array", "items": _CLOUD_EVENT}},
    LINES[0]: {"schema": _TEXT},
}


def body(schema: dict[str, Any], *media_types: str) -> dict[str, Any]:
    """The part of an operation that describes its body."""
    content = {media_type: {"schema": schema} for media_type in media_types or (PLAIN,)}
    return {"requestBody": {"required": True, "content": content}}


def events_body() -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": _EVENTS}}


def answers(*statuses: int, **described: str) -> dict[int | str, dict[str, Any]]:
    """The part of an operation that describes how it may be refused."""
    everywhere = (400, 401, 404, 405, 408, 421, 422, 429, 431, 500, 503)
    refused = sorted({*statuses, *everywhere})
    told: dict[int | str, dict[str, Any]] = {
        status: {"description": _TITLES[status], "content": {MEDIA_TYPE: {"schema": _PROBLEM}}} for status in refused
    }
    for status in (408, 429, 503):
        told[status]["headers"] = {"Retry-After": {"description": "Seconds, if waiting helps", "schema": _TEXT}}
    return told | {int(name.removeprefix("_")): {"description": text} for name, text in described.items()}


PATH = "/v1/docs"
_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
# Nothing on the page may come from, or go to, another machine.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)


def install_docs(app: FastAPI) -> None:
    """Serve the page and its files."""

    async def page() -> HTMLResponse:
        answer = get_swagger_ui_html(
            openapi_url=app.openapi_url or "",
            title=f"{app.title}: the interface",
            swagger_js_url=f"{PATH}/swagger-ui-bundle.js",
            swagger_css_url=f"{PATH}/swagger-ui.css",
            swagger_favicon_url=f"{PATH}/favicon.png",
            swagger_ui_parameters={"validatorUrl": None},
        )
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer

    async def file(name: str) -> Response:
        if name not in _FILES:
            raise missing("file", name)
        content = (files("fastapi_offline") / "static" / name).read_bytes()
        return Response(content, media_type=_FILES[name], headers={"Cache-Control": "max-age=86400"})

    app.add_api_route(PATH, page, include_in_schema=False)
    app.add_api_route(PATH + "/{name}", file, include_in_schema=False)
