"""The conformance suite passes the matcher, and catches every wrong one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidings import Matcher, SubscriptionError
from tidings.matching.engines import cells
from tidings.testing import NonConformance, check_matcher


def test_the_matcher_keeps_every_law() -> None:
    check_matcher(Matcher, cases=2)


class Pairs(list[Any]):
    def pairs(self) -> list[Any]:
        return list(self)


class Misreads(Matcher):
    """An engine that takes one operator for another."""

    was, becomes = ">=", ">"

    def __init__(self, subscriptions: Any, domain: Any) -> None:
        super().__init__([(id_, text.replace(self.was, self.becomes)) for id_, text in subscriptions], domain)


class IgnoresNull(Misreads):
    was, becomes = "IS NULL", "IS NULL AND FALSE"


class LosesTheLastEvent(Matcher):
    def match(self, events: Any, *args: Any, **options: Any) -> Any:
        pairs = super().match(events, *args, **options).pairs()
        return Pairs(pair for pair in pairs if len(events) == 1 or pair[0] < len(events) - 1)


class FindsTwice(Matcher):
    def match(self, events: Any, *args: Any, **options: Any) -> Any:
        pairs = super().match(events, *args, **options).pairs()
        return Pairs(pairs + pairs[:1])


class NamesInTexts(Matcher):
    def match(self, events: Any, *args: Any, **options: Any) -> Any:
        return Pairs((event, str(id_)) for event, id_ in super().match(events, *args, **options).pairs())


class NeverRemoves(Matcher):
    def remove(self, ids: Any) -> None:
        pass


class KeepsWhatItReplaces(Matcher):
    def upsert(self, subscriptions: Any) -> None:
        for id_, text in subscriptions:
            try:
                self.add([(id_, text)])
            except SubscriptionError:
                continue


class ReadsMatchesLate(Matcher):
    """Matches that look at the matcher when they are read."""

    def match(self, events: Any, *args: Any, **options: Any) -> Any:
        matcher = super()

        class Late:
            def pairs(self) -> list[Any]:
                return matcher.match(events, *args, **options).pairs()

        return Late()


class ChangesHalf(Matcher):
    def add(self, subscriptions: Any) -> None:
        for one in subscriptions:
            super().add([one])


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (Misreads, "matches"), (IgnoresNull, "matches"), (LosesTheLastEvent, "matches"), (FindsTwice, "twice"),
        (NamesInTexts, "matches"), (NeverRemoves, "after remove"), (KeepsWhatItReplaces, "after upsert"),
        (ReadsMatchesLate, "as they were when matched"), (ChangesHalf, "changes nothing"),
    ],
)  # fmt: skip
def test_a_wrong_matcher_is_caught(wrong: Any, law: str) -> None:
    with pytest.raises(NonConformance, match=law):
        check_matcher(wrong, cases=2)


def test_an_engine_that_forgets_a_constraint_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    built = cells.cells_index

    def forgetful(*given: Any) -> Any:
        index = built(*given)
        index.bounds[:, 1] = np.iinfo(np.int64).max
        return index

    monkeypatch.setattr("tidings.matching.engines.engine_choice.cells_index", forgetful)
    with pytest.raises(NonConformance, match="should not be"):
        check_matcher(Matcher, cases=5)
