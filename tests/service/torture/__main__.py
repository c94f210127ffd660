"""Torture a real service by schedules of chance, and judge what publishers and subscribers saw.

    python -m tests.service.torture                       one schedule, of a seed that is printed
    python -m tests.service.torture --minutes 120         one after the other, for so long
    python -m tests.service.torture --seed 7 --until 40   that schedule once more, its first 40 actions
    python -m tests.service.torture --seed 7 --print      only print it
    python -m tests.service.torture --planted 3           put a bug back, and see it found; "all" for one after another
    python -m tests.service.torture --check FILE          judge a history once more

Exit status 1 where a promise was broken: the seed, the command that repeats it, and the folder with the histories, the
data and what the service said are printed.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ..history.checker import Violation, check_files
from . import results
from .motifs import MOTIFS
from .planted import PLANTED, row_of, schedule_of
from .run import SETTLE_SECONDS, Outcome, torture
from .schedule import Schedule, generate

MOST_SHOWN, MOST_ALIKE = 20, 4


def main(arguments: list[str]) -> int:
    asked = _arguments(arguments)
    if asked.check is not None:
        report = check_files([asked.check])
        print(report)
        return 1 if report.violations else 0
    if asked.planted is not None:
        rows = [*PLANTED] if asked.planted == "all" else [asked.planted]
        return max([_planted(row, asked) for row in rows])
    until = time.monotonic() + 60 * asked.minutes
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1 << 31)
    while True:
        schedule = generate(seed, asked.seconds, only=asked.only, without=asked.without, timed=not asked.untimed)
        schedule = schedule.until(asked.until)
        if asked.print:
            print(" ".join(["options:", *schedule.options]), *schedule.lines(), sep="\n")
            return 0
        if _one(schedule, asked):
            return 1
        seed += 1
        if time.monotonic() > until:
            return 0


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.service.torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="the schedule; by default one of chance")
    parser.add_argument("--seconds", type=float, default=120.0, help="that a schedule has actions for")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with the next seeds for so long")
    parser.add_argument("--until", type=int, help="carry out only so many actions")
    parser.add_argument("--only", nargs="+", default=[], choices=[*MOTIFS], help="only these motifs, once each")
    parser.add_argument("--without", nargs="+", default=[], choices=[*MOTIFS], help="no such motifs")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds for what is owed at the end")
    parser.add_argument("--untimed", action="store_true", help="judge nothing that speaks of seconds (I7, I9)")
    parser.add_argument("--planted", choices=[*PLANTED, "all"], help="put this row's bug back")
    parser.add_argument("--print", action="store_true", help="print the schedule and do nothing")
    parser.add_argument("--keep", type=Path, help="keep everything there, whatever comes of it")
    parser.add_argument("--save", action="store_true", help="add what came of it to benchmarks/results")
    parser.add_argument("--check", type=Path, help="judge this history")
    return parser.parse_args(arguments)


def _one(schedule: Schedule, asked: argparse.Namespace, planted: str | None = None) -> list[Violation]:
    """Carry one schedule out, and say what came of it; returns what was broken."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidings-torture-{schedule.seed}-", dir=asked.keep))
    print(
        f"seed {schedule.seed}: {len(schedule.actions)} actions in {schedule.seconds:g} s, "
        f"{' '.join(schedule.options) or 'no options'}; {folder}",
        flush=True,
    )
    try:
        outcome = torture(schedule, folder, planted=planted, settle_seconds=asked.settle)
    except BaseException:
        print(f"broken off; repeat it: {command(schedule, asked)}\nkept: {folder}", flush=True)
        raise
    _tell(outcome)
    if asked.save and planted is None:
        results.save([outcome.row()])
    elif asked.save:
        found = list(map(str, outcome.report.violations))
        results.save_planted(row_of(planted, schedule.seed, found, outcome.seconds))
    if outcome.report.violations:
        print(f"repeat it: {command(schedule, asked)}\nkept: {folder}", flush=True)
    elif asked.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome.report.violations


def _tell(outcome: Outcome) -> None:
    report = outcome.report
    print(f"  {outcome.seconds:.0f} s, {str(report).splitlines()[0]}")
    if outcome.p99_alone_seconds is not None:
        print(
            f"  steady: p99 {outcome.p99_alone_seconds:.2f} s alone, {outcome.p99_beside_seconds:.2f} s beside others"
        )
    shown = Counter[str]()
    for violation in report.violations:
        kind = re.sub(r"[0-9]+", "", str(violation))[:60]  # of alike ones a few tell it all
        shown[kind] += 1
        if shown[kind] <= MOST_ALIKE:
            print(f"  VIOLATION {str(violation)[:600]}")
    if len(report.violations) > sum(min(count, MOST_ALIKE) for count in shown.values()):
        print(f"  … {len(report.violations)} in all: python -m tests.service.torture --check {outcome.records}")
    for name, seconds in report.recoveries.items():
        if not name.startswith("the end"):
            print(f"  recovery: {name}: {'never' if seconds is None else f'{seconds:.1f} s'}")
    for note in outcome.notes:
        print(f"  note: {note[:500]}")
    for line in outcome.refusals[:MOST_SHOWN]:
        print(f"  refused: {line[:200]}")
    sys.stdout.flush()


def command(schedule: Schedule, asked: argparse.Namespace) -> str:
    parts = ["python -m tests.service.torture", f"--seed {schedule.seed}", f"--seconds {schedule.seconds:g}"]
    for name in ("only", "without"):
        parts += [f"--{name} {' '.join(getattr(asked, name))}"] if getattr(asked, name) else []
    parts += ["--untimed"] if asked.untimed else []
    parts += [f"--until {asked.until}"] if asked.until is not None else []
    parts += [f"--planted {asked.planted}"] if asked.planted is not None else []
    return " ".join(parts)


def _planted(row: str, asked: argparse.Namespace) -> int:
    """Put a bug back; exit status 0 where it is found, or where the service is to mend it and nothing is."""
    schedule = schedule_of(row, asked.seed).until(asked.until)
    if asked.print:
        print(" ".join(["options:", *schedule.options]), *schedule.lines(), sep="\n")
        return 0
    found = _one(schedule, asked, planted=row)
    mends = PLANTED[row].mends
    print(f"planted {row}: {'found' if found else 'mended' if mends else 'NOT FOUND'}", flush=True)
    return 0 if bool(found) is not mends else 1


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the service ends with this
sys.exit(main(sys.argv[1:]))
