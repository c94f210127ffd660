"""The table of faults in the manual is what came out of breaking the service."""

from __future__ import annotations

import json

from benchmarks.record import RESULTS

from . import attacks, table
from .scenarios import SCENARIOS


def test_the_table_in_the_manual_is_that_of_the_result_file() -> None:
    shown = table.BEGIN + table.document() + table.END
    assert shown in table.MANUAL.read_text(), "write it anew: python -m tests.service.faults.table"


def test_every_fault_was_tried_and_broke_no_promise() -> None:
    rows = json.loads((RESULTS / "faults.json").read_text())["rows"]
    assert {row["run"] for row in rows} == {scenario.name for scenario in SCENARIOS}
    assert [row["fault"] for row in rows if row["violations"]] == []


def test_the_attacks_in_the_manual_are_those_of_the_result_file() -> None:
    shown = attacks.BEGIN + attacks.document() + attacks.END
    assert shown in attacks.MANUAL.read_text(), "run them: python -m tests.service.faults.attacks"


def test_every_attack_was_tried_and_failed_nowhere() -> None:
    rows = json.loads((RESULTS / "attacks.json").read_text())["rows"]
    assert {row["attack"] for row in rows} == {attack.name for attack in attacks.ATTACKS}
    assert [row["attack"] for row in rows if row["failed"] or not row["cases"]] == []
