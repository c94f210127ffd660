"""What may be asked of a run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

SIZES = (40_000, 200_000, 1_000_000)
WORKLOADS = ("bluedove", "alerts", "strings", "mixed")


@dataclass(frozen=True)
class Options:
    """The defaults are a whole run."""

    sizes: tuple[int, ...] = SIZES
    workloads: tuple[str, ...] = WORKLOADS
    peers: tuple[str, ...] | None = None  # None: all that can do the workload
    quick: bool = False  # a look in under a minute, too short for figures: not written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=_integers, default=SIZES, help="subscriptions, as 40000,200000")
    parser.add_argument("--with-10m", action="store_true", help="10,000,000 subscriptions too")
    parser.add_argument("--workloads", type=_words, default=WORKLOADS, help="as bluedove,mixed")
    parser.add_argument("--peers", type=_words, default=None, help="as numpy,duckdb; all without, none with ''")
    parser.add_argument("--quick", action="store_true", help="a look in under a minute; nothing is written")


def options_from(arguments: argparse.Namespace) -> Options:
    sizes = (4_000,) if arguments.quick and arguments.sizes == SIZES else arguments.sizes
    sizes += (10_000_000,) if arguments.with_10m else ()
    return Options(sizes, arguments.workloads, arguments.peers, arguments.quick)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in _words(text.replace("_", "")))
