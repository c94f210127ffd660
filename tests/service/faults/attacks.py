"""Attacks that are tests of their own: run in their longest form, counted, and shown in the manual.

`python -m tests.service.faults.attacks` runs them, or those that are named, and writes what came of them there. A test
that makes many cases of one says how many, as the property `cases`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.record import RESULTS, write

ROOT = Path(__file__).parents[3]
MANUAL = ROOT / "docs" / "service.md"
BEGIN, END = "<!-- attacks: begin -->\n", "<!-- attacks: end -->"
QUESTION = "Does anything get lost by hostile requests, power cuts and trouble among nodes?"


class Attack(NamedTuple):
    name: str
    what: str
    promise: str
    tests: str  # a file of tests, and the function
    marks: str = "long or not long"


ATTACKS = (
    Attack(
        "hostile",
        "requests meant to do harm",
        "each has its answer, and changes nothing",
        "tests/service/end_to_end/test_hostile_inputs.py::test_a_hostile_input_has_its_answer_and_changes_nothing",
    ),
    Attack(
        "databases",
        "power cuts under log, catalogue, mailboxes and deliveries, with unsynced writes lost or in another order",
        "what was answered is there",
        "tests/store/end_to_end/test_power_cut.py::"
        "test_what_was_answered_survives_a_power_cut_whatever_is_left_of_unsynced_writes",
        "long",
    ),
    Attack(
        "checkpoints",
        "power cuts under a stream's checkpoint: up to three files missing, empty, cut or old",
        "the stream continues where its mailboxes are, or before",
        "tests/pipeline/end_to_end/test_checkpoint_power_cut.py::"
        "test_whatever_a_cut_leaves_a_query_goes_on_where_the_store_is_or_before",
        "long",
    ),
    Attack(
        "checkpoints-on-spark",
        "the same, a part of them chosen by chance, continued by Spark",
        "everyone is notified of everything once",
        "tests/pipeline/end_to_end/test_checkpoint_power_cut.py::"
        "test_a_query_started_after_a_power_cut_notifies_everyone_of_everything_once",
        "long",
    ),
    Attack(
        "nodes",
        "networks of node processes: forged frames, events of any size, stalls, crashes, nodes that leave and return",
        "every node answers, and every later event is delivered",
        "tests/systems/end_to_end/test_trouble.py::test_a_network_is_whole_after_random_trouble",
    ),
)


def run(attack: Attack) -> dict[str, Any]:
    """Runs the tests of an attack, and returns what came of them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidings-") as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-n", "0", "-m", attack.marks, f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        subprocess.run([sys.executable, "-m", "pytest", *options, attack.tests], cwd=ROOT, check=False)
        tests = list(ElementTree.parse(report).iter("testcase"))
    if not tests:
        sys.exit(f"{attack.name}: no test was run: {attack.tests}")
    skipped = [test.get("name") for test in tests if test.find("skipped") is not None]
    if skipped:
        sys.exit(f"{attack.name}: skipped, so that nothing is known: {', '.join(map(str, skipped))}")
    failed = [test for test in tests if test.find("failure") is not None or test.find("error") is not None]
    return {
        "attack": attack.name,
        "cases": sum(_cases(test) for test in tests),
        "failed": len(failed),
        "seconds": round(time.monotonic() - began),
    }


def _cases(test: ElementTree.Element) -> int:
    found = [one.get("value") for one in test.iter("property") if one.get("name") == "cases"]
    return int(found[0] or 0) if found else 1


def document() -> str:
    """What stands between the marks in the manual."""
    path = RESULTS / "attacks.json"
    found = {row["attack"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    lines = ["| attack | what is promised | cases | failed | date |", "|---|---|---:|---:|---|"]
    for attack in ATTACKS:
        row = found.get(attack.name)
        came = ["not run yet", "", ""] if row is None else [f"{row['cases']:,}", f"{row['failed']:,}", row["date"]]
        lines.append(f"| {' | '.join([attack.what, attack.promise, *came])} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    rows = [run(attack) for attack in ATTACKS if not names or attack.name in names]
    write("attacks", QUESTION, rows, same=("attack",))
    before, rest = MANUAL.read_text().split(BEGIN)
    _, after = rest.split(END)
    MANUAL.write_text(f"{before}{BEGIN}{document()}{END}{after}")
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
