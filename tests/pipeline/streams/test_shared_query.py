"""The stream that domains share."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.streams import shared_query
from tidings.pipeline.streams.shared_query import domain_named


def test_an_error_while_matching_names_its_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for what breaks a stream there first."""

    def breaks(*_: Any) -> Any:
        raise ValueError("poison")

    monkeypatch.setattr(shared_query, "_member", lambda *_: SimpleNamespace(domain=None))
    monkeypatch.setattr(shared_query, "attribute_columns", lambda *_, **__: [SimpleNamespace(position=[4])])
    monkeypatch.setattr(shared_query, "_subscriptions", breaks)
    page: Any = SimpleNamespace(domain="ada.quotes")
    task: Any = None
    with pytest.raises(PipelineError, match=re.escape(f"{domain_named('ada.quotes')}: ValueError: poison")):
        list(shared_query._matched(task, 1, 4, 5, [page]))
