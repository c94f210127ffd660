"""The log against a plain list of what was appended to it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.log.log_writer import Log

from ..log_events import cloud, events_of

NAMES = st.tuples(st.sampled_from(["/a", "/b"]), st.sampled_from("123"))
EVENTS = st.lists(st.one_of(NAMES, st.integers(0, 3)), max_size=25)


class LogMachine(RuleBasedStateMachine):
    """A log against a list: append, duplicates, retention, reading, opening again."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tidings-log-"))
        self.log = Log(self.directory)
        self.model: list[tuple[str, dict[str, Any]]] = []  # by position
        self.names: dict[tuple[str, str, str], int] = {}
        self.sent: list[int] = []  # the ends of appends, between which retention may cut

    @initialize(large=st.integers(0, 40))
    def begin(self, large: int) -> None:
        self.append([0] * large, "a", typed=True)

    @rule(events=EVENTS, domain=st.sampled_from("ab"), typed=st.booleans())
    def append(self, events: list[Any], domain: str, typed: bool) -> None:
        given = [cloud(*event) if isinstance(event, tuple) else {"n": event} for event in events]
        batch: Any = read_events(given, Domain(domain, [Attribute("n", "int")])) if typed else given
        expected = []
        for event, record in zip(events, given, strict=True):
            known = self.names.get((domain, *event)) if isinstance(event, tuple) else None
            if known is None or known < self.log.start:
                known = len(self.model)
                self.model.append((domain, record))
                if isinstance(event, tuple):
                    self.names[domain, *event] = known
            expected.append(known)
        assert self.log.append(batch, domain=domain) == expected
        self.sent.append(len(self.model))

    @rule()
    def open_again(self) -> None:
        self.log.close()
        self.log = Log(self.directory)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        limit = data.draw(st.sampled_from(self.sent))
        assert self.log.retain(from_position=limit) == max(limit, self.log.start)

    @rule(data=st.data(), domain=st.sampled_from(["a", "b", None]))
    def read_a_part(self, data: st.DataObject, domain: str | None) -> None:
        start = data.draw(st.integers(self.log.start, len(self.model)))
        end = data.draw(st.integers(start, len(self.model)))
        expected = [(k, *self.model[k]) for k in range(start, end) if domain in (None, self.model[k][0])]
        assert events_of(self.log, start, end, domain) == expected

    @rule(domain=st.sampled_from("ab"))
    def read_attributes(self, domain: str) -> None:
        read = [
            row
            for part in self.log.read_attributes(Domain(domain, [Attribute("n", "int")]))
            for row in zip(part.position.to_pylist(), part.attributes["n"].to_pylist(), strict=True)
        ]
        kept = range(self.log.start, len(self.model))
        assert read == [(k, self.model[k][1].get("n")) for k in kept if self.model[k][0] == domain]

    @invariant()
    def it_ends_where_the_list_does(self) -> None:
        assert self.log.end == len(self.model)

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.directory)


@pytest.mark.parametrize("examples", [12, pytest.param(500, marks=pytest.mark.long)])
def test_a_log_does_what_a_list_does(examples: int) -> None:
    run_state_machine_as_test(LogMachine, settings=settings(max_examples=examples, stateful_step_count=20))
