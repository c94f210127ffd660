"""A loop over rules in plain Python: a function for each filter, called for each event.

What most people run who need it today. The functions are compiled once for each class and close
over the constants, so that building them is no matter of compiling every text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers import ALL_WORKLOADS
from benchmarks.peers.prepared import Class, Prepared

# By kind of conjunct: a, b are the event's values; p, q, r the constants. A missing value is None.
PYTHON = {
    "equal": "{a} == {p}",
    "at_least": "({a} is not None and {a} >= {p})",
    "below": "({a} is not None and {a} < {p})",
    "either": "({a} == {p} or {b} == {q})",
    "differs": "({a} is not None and {a} != {p})",
    "among": "{a} in ({p}, {q}, {r})",
    "prefix": "({a} is not None and {a}.startswith({p}))",
    "contains": "({a} is not None and {p} in {a})",
    "null": "{a} is None",
    "exceeds": "({a} is not None and {b} is not None and {a} > {b} * {p})",
}


class Peer:
    name = "python rules"
    workloads = ALL_WORKLOADS
    events_max = 1_000

    def build(self, subscriptions: Prepared) -> None:
        rules: list[Any] = [None] * subscriptions.count
        for class_ in subscriptions.classes:
            made = map(_maker(class_), *(column.tolist() for column in class_.constants))
            for number, rule in zip(class_.subscriptions.tolist(), made, strict=True):
                rules[number] = rule
        self._rules = rules

    def match(self, events: Any) -> tuple[Any, Any]:
        found = [
            (number, subscription)
            for number, event in enumerate(events.to_pylist())
            for subscription, rule in enumerate(self._rules)
            if rule(event)
        ]
        pairs = np.array(found, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def _maker(class_: Class) -> Callable[..., Callable[[dict[str, Any]], bool]]:
    """Makes the rule of a subscription of this class from its constants."""
    parts = []
    for conjunct in class_.conjuncts:
        values = {letter: f"e['{name}']" for letter, name in zip("ab", conjunct.names, strict=False)}
        constants = {letter: f"p{i}" for letter, i in zip("pqr", conjunct.constants, strict=False)}
        parts.append(PYTHON[conjunct.kind].format(**values, **constants))
    parameters = ", ".join(f"p{i}" for i in range(len(class_.constants)))
    maker: Callable[..., Callable[[dict[str, Any]], bool]] = eval(
        f"lambda {parameters}: lambda e: {' and '.join(parts)}"
    )
    return maker
