"""Two hundred inputs that nobody should send: each has its answer, changes nothing, and says nothing of the inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from .hostile_inputs import INPUTS, Input


@pytest.fixture(scope="module")
def tenant(server: Any) -> Iterator[Any]:
    """One tenant for all rows: each leaves nothing behind."""
    made = server.new_tenant()
    made.describe()
    yield made
    made.close()


@pytest.mark.parametrize("given", INPUTS, ids=[one.name for one in INPUTS])
def test_a_hostile_input_has_its_answer_and_changes_nothing(tenant: Any, given: Input) -> None:
    end = tenant.end
    answer = tenant.client.request(given.method, given.path, content=given.body, headers=given.headers)
    assert answer.status_code == given.status, answer.text[:500]
    assert "Traceback" not in answer.text
    assert tenant.client.get("/v1/health").status_code == 200
    if given.status < 400:
        assert tenant.end == end + 1
        return
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    if given.status in (408, 413, 429):
        assert answer.json()["limit"], "the limit is named, and its value"
        assert answer.json()["value"] > 0
    assert len(answer.content) < 4096, "what is wrong is not repeated at length"
    assert tenant.end == end
    assert tenant.client.get("/v1/subscriptions").json()["subscriptions"] == []
    assert [one["name"] for one in tenant.client.get("/v1/domains").json()["domains"]] == ["stocks"]


def test_there_are_two_hundred_and_no_two_have_one_name() -> None:
    assert len(INPUTS) >= 200
    assert [name for name, count in Counter(one.name for one in INPUTS).items() if count > 1] == []
