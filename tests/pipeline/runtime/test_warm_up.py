"""Warming up: what is made up fits its domain and matches, so that kernels are compiled by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.matching.matcher import Matcher
from tidings.pipeline.runtime import warm_up
from tidings.pipeline.steps import match_step

pytestmark = pytest.mark.spark


def test_events_of_every_kind_are_matched_and_that_is_said(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    matched: list[int] = []
    match = match_step.match

    def counted(*given: object, **options: object) -> object:
        found = match(*given, **options)  # type: ignore[arg-type]
        matched.append(sum(row.matches for row in found.collect()))
        return found

    monkeypatch.setattr(match_step, "match", counted)
    monkeypatch.setattr(warm_up, "say_compiled", lambda: said.append("compiled"))
    warm_up.match_every_kind(spark)
    records, documents = matched
    assert documents > records > 0
    assert said == ["compiled"]


def test_what_cannot_be_matched_is_not_said_to_be_compiled(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(warm_up, "_COLUMNS", "n bigint")  # and events have nine values
    monkeypatch.setattr(warm_up, "say_compiled", lambda: said.append("compiled"))
    warm_up.match_every_kind(spark)
    assert said == []


def test_a_worker_can_match_what_was_made_up_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    match = Matcher.match

    def counted(matcher: Matcher, *given: Any, **options: Any) -> Any:
        matches = match(matcher, *given, **options)
        found.append(len(list(matches.pairs())))
        return matches

    monkeypatch.setattr(Matcher, "match", counted)
    warm_up.match_here()
    records, documents = found
    assert documents > records > 0
