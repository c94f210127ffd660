"""The page `/v1/docs`: Swagger UI over the OpenAPI document, with all of its files from this machine."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

from tidings.service.gateway.problems import missing

PATH = "/v1/docs"
_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
# Nothing on the page may come from, or go to, another machine.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)


def install(app: FastAPI) -> None:
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
