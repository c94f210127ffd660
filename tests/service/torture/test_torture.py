"""A short version of `make torture`, and what schedules are made of."""

from __future__ import annotations

import contextlib
import json
import random
import re
import runpy
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import tidings
from benchmarks import record
from tidings.errors import FilterError
from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway.app import create_app

from ..history.judge import holds
from ..history.records import Fault
from . import hostile, meaning, results
from .content import FORMS, TEXTS, attributes_of, draw_filter, limit_filters, posts
from .hostile import ATTACKS, Attacker
from .motifs import BROKEN, MOTIFS
from .planted import PLANTED, row_of, schedule_of
from .schedule import ALONE_SECONDS, generate
from .world import World

SHORT = ("ordinary", "limit_filter", "fuzzed", "odd_names", "documents", "expiring")
SEED = 17
HOOKS = Path(__file__).parent / "hooks"

assert meaning.interpreted


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_every_promise_is_kept_under_a_schedule_of_chance(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from .run import torture

    schedule = generate(SEED, 20.0, only=SHORT, timed=False, options=(), quiet=True).faster(2.5)
    outcome = torture(schedule, tmp_path)
    lines = "\n".join(map(str, outcome.report.violations[:20]))
    assert not outcome.report.violations, f"{outcome.report}\n{lines}\n{outcome.notes}\n{outcome.records}"
    assert outcome.report.outcomes["acked"] > 100
    assert outcome.report.deliveries > 100


def test_a_seed_makes_one_schedule_and_another_seed_another() -> None:
    assert generate(7, 120.0).lines() == generate(7, 120.0).lines()
    assert generate(7, 120.0).lines() != generate(8, 120.0).lines()
    assert generate(8, 120.0).until(5).actions == generate(8, 120.0).actions[:5]


def test_nothing_breaks_while_a_tenant_is_compared_with_itself_alone() -> None:
    schedule = generate(7, 300.0)
    calm = ALONE_SECONDS + schedule.beside_seconds
    assert min(action["at"] for action in schedule.actions) >= ALONE_SECONDS
    assert not any(action["motif"] in BROKEN for action in schedule.actions if action["at"] < calm)


def test_every_motif_is_in_a_long_schedule_and_every_action_can_be_carried_out() -> None:
    schedule = generate(7, 900.0)
    assert schedule.motifs.keys() == MOTIFS.keys()
    for action in schedule.actions:
        assert hasattr(World, f"_do_{action['do']}"), action


def test_every_attack_is_made_beside_the_steady_tenant_twice_in_twenty_schedules() -> None:
    made = Counter[str]()
    for seed in range(1000, 1020):
        schedule = generate(seed, 120.0)
        calm = ALONE_SECONDS + schedule.beside_seconds
        made.update(one["kind"] for one in schedule.actions if one["do"] == "hostile" and one["at"] < calm)
    assert made.keys() == ATTACKS.keys()
    assert min(made.values()) >= 2, made


@dataclass
class Pretending(Attacker):
    """Sends nothing, and remembers what it would have sent."""

    asked: set[tuple[str, str]] = field(default_factory=set)

    def request(self, method: str, path: str, content: bytes, kind: str = "application/json", **headers: str) -> bytes:
        self.asked.add((method.lower(), path))
        return b'{"positions": [7]}'

    def connect(self) -> None:
        return None


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_request_of_an_attack_has_a_route(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = create_app(DataDirectory(Path("nowhere"))).openapi()["paths"]
    known = [(re.sub(r"\{[^}]*\}", "[^/]+", path), methods) for path, methods in paths.items()]
    monkeypatch.setattr(hostile, "HELD_SECONDS", 0.0)
    ATTACKS[kind](one := Pretending(0, ""))
    for method, path in one.asked:
        assert any(re.fullmatch(pattern, path) and method in methods for pattern, methods in known), (method, path)


def test_an_attack_whose_requests_reach_nothing_is_noticed() -> None:
    answered = {
        "no route": {("PUT /domains/d", 200): 1, ("GET /domains/d/events/N/matches", 404): 5},
        "reached once": {("GET /events/N/matches", 404): 4, ("GET /events/N/matches", 200): 1},
        "refused before": {("PUT /domains/d", 429): 1, ("POST /filters:backtest", 404): 9},
        "failed before": {("PUT /domains/d", 0): 1, ("POST /filters:backtest", 404): 9},
    }
    useless = {name: list(Attacker(0, "", answers=Counter(one)).useless()) for name, one in answered.items()}
    assert useless.pop("no route") == ["GET /domains/d/events/N/matches was answered 404 every time"]
    assert not any(useless.values()), useless


@pytest.mark.parametrize("shape", ["stock", "venue", "text", "odd:time", "xml", "fuzz:3"])
def test_every_event_of_a_shape_is_judged_by_every_filter_of_it(shape: str) -> None:
    draw = random.Random(1)
    filters = [draw_filter(draw, shape) for _ in range(10)]
    filters += limit_filters() if shape == "text" else []
    assert attributes_of(shape)
    seen = set[bool]()
    for form in ("feed", "xml") if shape == "xml" else FORMS:
        for post in posts(draw, shape, form, 8, 10, "/p", 0):
            seen |= {holds(one["predicate"], record) for one in filters for record in post.records}
    assert seen == {True, False}


def test_what_a_filter_at_its_limits_is_said_to_mean_is_what_the_interpreter_makes_of_it() -> None:
    domain = Domain.from_json({"name": "judged", "attributes": attributes_of("text")})
    for one in limit_filters():
        with contextlib.suppress(FilterError):  # past its limits, and so never accepted
            tree = parse_filter(one["text"], domain)
            for text in TEXTS:
                record = {"s": text, "n": 3}
                found = evaluate(tree, read_record(record, domain)) is True
                assert holds(one["predicate"], record) is found, (one["text"][:60], text[:20])


def test_the_clock_jumps_in_every_module_of_the_service_that_asks_for_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`time` is replaced as a whole; a module that asks `datetime` has to be named."""
    monkeypatch.setenv("TIDINGS_CLOCK", str(tmp_path / "clock"))
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # set back at the end
    named = list[str]()
    runpy.run_path(str(HOOKS / "clock.py"), init_globals={"after": lambda name, _: named.append(name)})
    source = Path(tidings.__file__).parents[1]
    asking = [
        ".".join(path.relative_to(source).with_suffix("").parts)
        for folder in ("service", "store")
        for path in sorted((source / "tidings" / folder).rglob("*.py"))
        if re.search(r"datetime\.(now|utcnow|today)\(|date\.today\(", path.read_text(encoding="utf-8"))
    ]
    assert sorted(named) == asking


def test_a_post_has_at_most_what_the_service_takes() -> None:
    for post in posts(random.Random(1), "stock", "batch", 20, 1_000_000, "/p", 0):
        assert len(post.body) < 8 << 20


def test_what_the_manual_says_of_torture_is_that_of_the_result_file() -> None:
    shown = results.BEGIN + results.document() + results.END
    assert shown in results.MANUAL.read_text(), "write it again: python -m tests.service.torture.results"


@pytest.mark.parametrize("row", PLANTED)
def test_a_planted_bug_has_a_short_schedule(row: str) -> None:
    schedule = schedule_of(row)
    assert 0 < len([*schedule.before, *schedule.actions]) <= 10


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("row", PLANTED)
def test_torture_finds_a_planted_bug_unless_the_service_lives_with_it(row: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from .run import torture

    outcome = torture(schedule_of(row), tmp_path, planted=row)
    assert bool(outcome.report.violations) is not PLANTED[row].mends, f"{outcome.report}\n{outcome.notes}"


def test_a_failure_stays_recorded_until_a_later_commit_has_kept_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["git", "log", "-2", "--format=%H"]
    made = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=Path(__file__).parent).stdout.split()
    if len(made) < 2:
        pytest.skip("there are no two commits here")
    new, old = made
    monkeypatch.setattr(record, "RESULTS", tmp_path)

    def saved(commit: str, violations: int) -> list[tuple[str, int]]:
        given = {"date": "2026-01-01", "commit": commit, "machine": {"load": 0.0}}
        monkeypatch.setattr(record, "circumstances", lambda: given)
        path = results.save([{"seed": 7, "violations": violations}])
        return [(row["commit"], row["violations"]) for row in json.loads(path.read_text())["rows"]]

    assert saved(old, 0) == [(old, 0)]
    assert saved(f"{old}-dirty", 2) == [(f"{old}-dirty", 2)]
    assert saved(old, 0) == [(f"{old}-dirty", 2), (old, 0)]
    assert saved(new, 1) == [(f"{old}-dirty", 2), (new, 1)]
    assert saved(old, 0) == [(f"{old}-dirty", 2), (new, 1), (old, 0)]
    assert saved(f"v1-3-g{new[:9]}", 0) == [(new, 1), (f"v1-3-g{new[:9]}", 0)]


def test_what_came_of_planted_bugs_is_kept_by_row_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    for row, lines in (("3", []), ("3", ["I1 lost"]), ("aside", [])):
        path = results.save_planted(row_of(row, 5, lines, 61.4))
    found = json.loads(path.read_text())
    assert [(row["row"], row["found"], row["as_expected"]) for row in found["rows"]] == [
        ("3", True, True),
        ("aside", False, True),
    ]
    shown = "\n".join(results._planted(found))
    assert shown.count("| yes | 61 |") == 2
    assert str(found["machine"]["cpu"]) in shown


def test_dead_letters_are_expected_only_of_what_a_schedule_does() -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from .run import expected_reasons

    assert expected_reasons(generate(7, 120.0, only=["ordinary"], options=())) == []
    assert len(expected_reasons(generate(7, 120.0, only=["retyped"], options=("--retain", "2mb")))) == 2


def test_recovery_from_faults_that_overlap_is_due_when_it_was_from_each() -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from .run import judged_faults

    restart, clock = Fault("restart", 100.0, 110.0, 120.0), Fault("clock", 111.0, 111.0, 30.0)
    (both,) = judged_faults([restart, clock])
    assert (both.name, both.over + both.bound_seconds) == ("2: clock", 230.0)
    (one, other) = judged_faults([replace(clock, began=1.0, over=1.0), restart])
    assert (one.bound_seconds, other.bound_seconds) == (30.0, 120.0)
    assert judged_faults([]) == []
