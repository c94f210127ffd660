"""Compare Spark, the interpreter and the matcher on a million random filter × event pairs.

    python -m tidings.testing.fuzz --seed 1 --pairs 1000000

Every round has a domain, events and filters of its own, from its own seed, so that one round
replays a failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from random import Random

from tidings import Matcher
from tidings.testing.agreement import AgreementTally, compare, smallest
from tidings.testing.random_cases import Case, make_case
from tidings.testing.spark_judge import local_session

FILTERS, EVENTS = 250, 160  # a round


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidings.testing.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first round; every next one takes the next seed")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="stop after so many filter × event pairs")
    parser.add_argument("--minutes", type=float, default=15, help="stop after so many minutes at the latest")
    options = parser.parse_args(arguments)

    print("starting Spark …", flush=True)
    spark = local_session()
    started = time.monotonic()
    total = AgreementTally()
    seed = options.seed
    while total.pairs < options.pairs and time.monotonic() - started < options.minutes * 60:
        case = make_case(Random(seed), events=EVENTS, filters=FILTERS)
        # Spark's compiler, which is what runs, takes its turn; its interpreter judges many more filters a second.
        found = compare(spark, case, match=match_pairs, compiled=seed % 8 == 0)
        total.add(found)
        if found.disagreements:
            disagreement = smallest(spark, case, found.disagreements, match=match_pairs)
            print(f"\n{disagreement}\nreplay  python -m tidings.testing.fuzz --seed {seed} --pairs 1\n", flush=True)
        seconds = time.monotonic() - started
        print(
            f"{seconds:6.0f} s  seed {seed}  {total.pairs:,} pairs  {len(total.disagreements)} disagreements",
            flush=True,
        )
        seed += 1
    spark.stop()
    _print_table(total, options.seed, seed - 1, time.monotonic() - started)
    return 1 if total.disagreements else 0


def match_pairs(subscriptions: Sequence[tuple[int, str]], case: Case) -> set[tuple[int, int]]:
    """(event, subscription) for every match that `tidings.Matcher` finds."""
    matches = Matcher(subscriptions, domain=case.domain).match(case.events)
    return {(int(i), int(number)) for i, number in matches.pairs()}


def _print_table(total: AgreementTally, first_seed: int, last_seed: int, seconds: float) -> None:
    rows = [
        ("seeds", f"{first_seed} to {last_seed}"),
        ("seconds", f"{seconds:,.0f}"),
        ("filters", f"{total.filters:,}"),
        ("refused", f"{total.refused:,}"),
        ("pairs", f"{total.pairs:,}"),
        ("true", f"{total.true:,}"),
        ("NULL", f"{total.null:,}"),
        ("Spark raises an error", f"{total.raised:,}"),
        ("differ by design", f"{total.listed:,}"),
        ("disagreements", f"{len(total.disagreements):,}"),
    ]
    print()
    for name, value in rows:
        print(f"  {name:24}{value:>14}")


if __name__ == "__main__":
    sys.exit(main())
