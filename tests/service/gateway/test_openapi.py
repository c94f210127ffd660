"""The OpenAPI document is true: whatever it allows is answered as it says, and what it does not is refused.

Schemathesis makes requests from the document, and judges the answers by it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from tests.waiting import LAST_RESORT_SECONDS

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks

from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway.app import create_app
from tidings.service.gateway.delivery_routes import MAX_WAIT_SECONDS

DOCUMENT = create_app(DataDirectory(Path("nowhere"))).openapi()
OPERATIONS = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
OF_EVERY_ANSWER = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
]
THERE = {"domain": "stocks", "id": "mine"}  # names of what there is, for the parameters of paths
ENDLESS = {("GET", "/v1/subscriptions/{id}/stream")}  # where there is a subscription
EVERYTHING = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)


@pytest.fixture(scope="module")
def tenant(server: Any) -> Any:
    """Somebody who has a domain, a subscription and some events; requests may change or remove them."""
    made = server.new_tenant()
    made.describe()
    made.subscribe(id="mine")
    made.publish_many(3)
    yield made
    made.close()


def judge(tenant: Any, method: str, path: str, mode: Any, known: dict[str, str], examples: int) -> None:
    document = schemathesis.openapi.from_dict(DOCUMENT)
    operation = document[path][method]
    judged = (
        [*OF_EVERY_ANSWER, openapi_checks.negative_data_rejection]
        if mode == GenerationMode.NEGATIVE
        else OF_EVERY_ANSWER
    )
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {tenant.token}"
    answers = 0

    @settings(EVERYTHING, max_examples=examples)
    @given(case=operation.as_strategy(generation_mode=mode, path_parameters=known).map(hastened))
    def every_answer_is_as_the_document_says(case: Any) -> None:
        nonlocal answers
        case.call_and_validate(base_url=tenant.url, session=session, checks=judged, timeout=LAST_RESORT_SECONDS)
        answers += 1

    every_answer_is_as_the_document_says()
    assert answers


def hastened(case: Any) -> Any:
    """The same request, which does not have the server wait as long as it may for something to answer."""
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0.1 < wait <= MAX_WAIT_SECONDS:
        case.query["wait"] = 0.1
    return case


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(tenant: Any, method: str, path: str) -> None:
    judge(tenant, method, path, GenerationMode.POSITIVE, {}, 5)


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each not in ENDLESS])
def test_what_the_document_allows_for_existing_names_is_answered_as_it_says(
    tenant: Any, method: str, path: str
) -> None:
    judge(tenant, method, path, GenerationMode.POSITIVE, known_of(path), 5)


def known_of(path: str) -> dict[str, str]:
    return {name: value for name, value in THERE.items() if f"{{{name}}}" in path}


def takes_something(method: str, path: str) -> bool:
    operation = DOCUMENT["paths"][path][method.lower()]
    return "requestBody" in operation or any(each["in"] == "query" for each in operation.get("parameters", ()))


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if takes_something(*each)])
def test_what_the_document_does_not_allow_is_refused(tenant: Any, method: str, path: str) -> None:
    judge(tenant, method, path, GenerationMode.NEGATIVE, known_of(path), 5)


@pytest.mark.long
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    ("method", "path"), [each for each in OPERATIONS if takes_something(*each) and each not in ENDLESS]
)
def test_the_document_is_true_of_many_requests(tenant: Any, method: str, path: str, mode: Any) -> None:
    judge(tenant, method, path, mode, known_of(path), 200)


def test_the_page_of_the_interface_needs_nothing_from_elsewhere(gateway: Any) -> None:
    with gateway.client_of(None) as client:
        page = client.get("/v1/docs")
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        named = re.findall(r"""(?:src|href|url)['"]?\s*[=:]\s*['"]([^'"]+)['"]""", page.text)
        assert len(named) == 4
        for address in named:
            assert address.startswith("/v1/")
            answer = client.get(address)
            assert answer.status_code == 200
            assert len(answer.content) > 1000
        assert "//" not in re.sub(r"<!--.*?-->", "", page.text, flags=re.DOTALL)
        assert client.get("/v1/docs/core.py").status_code == 404


def test_every_operation_says_how_it_is_refused_for_time_size_and_quotas(gateway: Any) -> None:
    document = gateway.client.get("/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            assert {"408", "429", "431"} <= set(answers), (path, method)
            assert "Retry-After" in answers["429"]["headers"]
            if "requestBody" in operation:
                assert "413" in answers, (path, method)
