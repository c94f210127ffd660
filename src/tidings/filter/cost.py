"""The cost of a filter: a number that bounds what one event can make it do, known when the filter is accepted.

    cost = nodes of the tree + instructions of its patterns + steps of its paths

A node is an operator, an attribute or a value; the operand of BETWEEN counts twice, since both comparisons have it. A
`LIKE` pattern counts its characters; with `_` in it, its UTF-8 bytes and 8 for each `%` and `_`, which is what RE2
makes of it at most. An `RLIKE` pattern counts the instructions of RE2's program, with its groups. Time grows with the
cost and with the length of the texts matched.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.errors import FilterError
from tidings.filter.meaning.patterns import MAX_SHORT_SIZE, like_size, rlike_size
from tidings.filter.tree import Expression, Like, Literal, RLike, XPathBoolean, operands_of

# Twice the tokens that a filter may have: without long patterns and BETWEEN within BETWEEN, none comes near it.
MAX_COST = 20_000


def filter_cost(tree: Expression) -> int:
    """The cost of a filter, or of a part of one. Parts that are shared are looked at once, and count every time."""
    return CostCounter().cost(tree)


def node_count(tree: Expression) -> int:
    """The nodes of a tree, without what their patterns cost."""
    return CostCounter(lambda node: 0).cost(tree)


def always_affordable(tree: Expression) -> bool:
    """Whether no filter of this form costs too much, whatever its patterns are, as long as they are short."""
    return CostCounter(_longest_short).cost(tree) <= MAX_COST


def _own_cost(node: Expression) -> int:
    match node:
        case Like(_, pattern):
            return like_size(pattern)
        case RLike(_, pattern):
            return rlike_size(pattern)
        case XPathBoolean(_, Literal(str() as path)):
            return path.count("/") + path.count("[")
    return 0


def _longest_short(node: Expression) -> int:
    return MAX_SHORT_SIZE if isinstance(node, Like | RLike | XPathBoolean) else 0


class CostCounter:
    """Costs of the parts of one tree, remembered while it is built."""

    def __init__(self, own_cost: Callable[[Expression], int] = _own_cost) -> None:
        self._own_cost = own_cost  # of a node, beside the one that it counts as such
        self._known: dict[int, tuple[Expression, int]] = {}  # by identity; the node is kept, or another might take it

    def cost(self, tree: Expression) -> int:
        known = self._known.get(id(tree))
        if known is None:
            total = 1 + self._own_cost(tree) + sum(self.cost(operand) for operand in operands_of(tree))
            known = self._known[id(tree)] = (tree, total)
        return known[1]

    def check(self, tree: Expression, column: int | None = None) -> None:
        """Raise FilterError for what costs too much, at this column or at that of the longest pattern."""
        cost = self.cost(tree)
        if cost <= MAX_COST:
            return
        costly = self._costliest_pattern()
        if costly is not None:
            column, hint = (
                costly.at or column,
                "write fewer wildcards and repetitions, or split it into several filters",
            )
        else:
            hint = "split it into several filters"
        raise FilterError(f"the filter costs {cost:,}, and {MAX_COST:,} is the most", column=column, hint=hint)

    def _costliest_pattern(self) -> Like | RLike | None:
        patterns = [node for node, _ in self._known.values() if isinstance(node, Like | RLike)]
        return max(patterns, key=self._own_cost, default=None)
