"""What a filter's text means, by the plain interpreter: a word that the checker's judge takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.model.strict_json import read_one

from ..history.judge import MEANINGS
from .content import attributes_of


def interpreted(rest: list[Any], record: Mapping[str, Any]) -> bool | None:
    """Of ["interpreted", text, shape]; an `exact` record is read as it was written."""
    text, shape = rest
    exact = record.get("exact")
    return _worth(text, shape, exact if isinstance(exact, str) else json.dumps(record, sort_keys=True))


@lru_cache(maxsize=1 << 18)
def _worth(text: str, shape: str, written: str) -> bool | None:
    tree, domain = _parsed(text, shape)
    worth: bool | None = evaluate(tree, read_record(read_one(written).value, domain))
    return worth


@lru_cache(maxsize=4096)
def _parsed(text: str, shape: str) -> tuple[Expression, Domain]:
    domain = Domain.from_json({"name": "judged", "attributes": attributes_of(shape)})
    return parse_filter(text, domain), domain


MEANINGS["interpreted"] = interpreted
