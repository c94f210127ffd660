"""The nodes that a subscription's paths select in an event, for who wants those and not the whole document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidings.errors import EventError
from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.tree import Expression, Literal, Not, XPathBoolean, operands_of
from tidings.model.types import Path
from tidings.xml.node_text import selected_nodes


def selects_nodes(expression: Expression) -> bool:
    """Whether a filter has paths that select anything: those under NOT do not."""
    match expression:
        case Not():
            return False
        case XPathBoolean():
            return True
    return any(map(selects_nodes, operands_of(expression)))


def selected_by(expression: Expression, record: Mapping[Path, Any]) -> list[str]:
    """What the paths of a filter select, path by path, but for those under NOT; nothing of what is no document."""
    match expression:
        case Not():
            return []
        case XPathBoolean(operand, Literal(str(path))):
            document = evaluate(operand, record)
            try:
                return selected_nodes(document, path) if isinstance(document, str) else []
            except EventError:
                return []
    return [node for operand in operands_of(expression) for node in selected_by(operand, record)]
