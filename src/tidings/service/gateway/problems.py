"""Every error of the interface in one form: RFC 9457's `application/problem+json`.

Errors of the framework (unknown route or method) have it too. An error that is our own fault says so without a stack
trace, which goes to the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidings.errors import DomainError, EventError, FilterError, TidingsError
from tidings.service.data.data_directory import DataDirectoryError
from tidings.store.catalogue import (
    CatalogueBusyError,
    CatalogueConflictError,
    CatalogueMissingError,
)
from tidings.store.log.log_errors import LogBusyError, LogConflictError, LogFullError, LogRangeError, LogUnknownError

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:tidings:problem:"
_logger = logging.getLogger(__name__)


class Problem(Exception):
    """Why a request is refused; raised anywhere below a route."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        pointer: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.pointer = pointer
        self.headers = dict(headers or {})
        self.more = more

    def response(self) -> Response:
        body: dict[str, Any] = {
            "type": _TYPE + self.kind,
            "title": _title(self.status),
            "status": self.status,
            "detail": self.detail,
        }
        if self.pointer is not None:
            body["pointer"] = self.pointer
        body |= {name: value for name, value in self.more.items() if value is not None}
        text = json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")
        return Response(text, self.status, self.headers, MEDIA_TYPE)


def missing(what: str, name: object, *, pointer: str | None = None, hint: str = "") -> Problem:
    """Returns a 404 for what does not exist or is another tenant's, which look the same from outside."""
    return Problem(
        404, "missing", f"{what}: there is no {shown(name)}" + (f"; {hint}" if hint else ""), pointer=pointer
    )


def invalid(detail: str, pointer: str) -> Problem:
    """Returns a 422 for an invalid value in valid JSON."""
    return Problem(422, "invalid", detail, pointer=pointer)


def busy(detail: str, *, status: int = 503, retry_after: int = 1, **more: Any) -> Problem:
    """Returns a 503 for now: nothing was done, and the request may be sent again."""
    return Problem(status, "busy", detail, headers={"Retry-After": str(retry_after)}, **more)


def shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"'{text if len(text) <= 80 else text[:79] + '…'}'"


def pointer_to(*parts: str | int) -> str:
    """Returns a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def problem_of(error: Exception) -> Problem | None:
    """Returns the problem for an error of the layers below; None for a mistake of our own."""
    match error:
        case Problem():
            return error
        case FilterError():
            return Problem(422, "filter", str(error), pointer="/filter", column=error.column)
        case EventError():
            pointer = None if error.row is None else pointer_to(error.row)
            return Problem(400, "event", str(error), pointer=pointer)
        case DomainError():
            return Problem(422, "domain", str(error))
        case DataDirectoryError():
            return Problem(422, "invalid", str(error))
        case LogConflictError():
            return Problem(409, "conflict", str(error), pointer=pointer_to(error.row), position=error.position)
        case LogBusyError() | CatalogueBusyError():
            return busy(str(error))
        case LogFullError():
            return busy(str(error), retry_after=30)
        case LogUnknownError():
            return busy(str(error), retry_after=5)
        case LogRangeError():
            return Problem(404, "missing", str(error))
        case CatalogueMissingError():
            return Problem(404, "missing", str(error))
        case CatalogueConflictError():
            return Problem(409, "conflict", str(error))
        case TidingsError():  # a store that cannot be used: the log tells the operator
            _logger.error("cannot serve: %s", error)
            return busy("a store of the service cannot be used at the moment; its log says why", retry_after=10)
    return None


def install(app: FastAPI) -> None:
    """Makes an application respond to every error with a problem."""

    async def ours(_: Request, error: Exception) -> Response:
        problem = problem_of(error)
        assert problem is not None
        return problem.response()

    async def of_framework(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return framework_problem(error.status_code, error.headers).response()

    async def of_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = [str(part) for part in first.get("loc", ())]
        return Problem(422, "invalid", f"{'.'.join(place[1:])}: {first.get('msg', 'is not valid')}").response()

    async def unknown(request: Request, error: Exception) -> Response:
        _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return Problem(500, "internal", "the service made a mistake; its log says more").response()

    app.add_exception_handler(Problem, ours)
    app.add_exception_handler(TidingsError, ours)
    app.add_exception_handler(HTTPException, of_framework)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(Exception, unknown)


def framework_problem(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    known = {404: ("missing", "there is no such address"), 405: ("method", "this address does not take this method")}
    kind, detail = known.get(status, ("http", _title(status)))
    return Problem(status, kind, detail, headers=headers)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
