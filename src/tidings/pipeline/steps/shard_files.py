"""Shard files on a worker: found where Spark put them, mapped into memory, and kept across batches and queries.

Python workers live as long as their executor, so what this module keeps is there for the next
task. Files are named by the content they were built from: another version has other names.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.pipeline.job_errors import PipelineError

SUFFIX = ".tidings"
SCRATCH_BYTES = 384 << 20  # for matching a batch
EVENTS_MIN = 100  # by which the index of a shard is chosen, however small it is

_loaded: OrderedDict[str, Matcher] = OrderedDict()  # by file name, the least recently used first


def load_shards(names: Sequence[str], *, kept: int) -> list[Matcher]:
    """The matchers of these shard files; afterwards at most `kept` stay loaded, and these.

    Where Spark bounds a worker's memory, others are let go before there is too little of it to match with.
    """
    matchers = [_load(name, names) for name in names]
    for name in list(_loaded):
        if len(_loaded) <= kept:
            break
        if name not in names:
            del _loaded[name]
    return matchers


def _load(name: str, needed: Sequence[str]) -> Matcher:
    if name not in _loaded:
        path = Path(SparkFiles.get(name))
        if not path.exists():
            raise PipelineError(
                f"the index file {name} did not reach this executor; was the index's directory removed?"
            )
        size = path.stat().st_size
        for other in list(_loaded):
            if _spare_bytes() >= size + SCRATCH_BYTES:
                break
            if other not in needed:
                del _loaded[other]
        _loaded[name] = Matcher.load(path, threads=1)  # Spark runs a task for each core already
    _loaded.move_to_end(name)
    return _loaded[name]


def _spare_bytes() -> float:
    """What of the addresses is left that this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return inf
    return limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say what to do where a worker has too little."""
    try:
        yield
    except MemoryError as error:
        raise PipelineError(
            f"a Python worker has too little memory for its part of the index ({error}): give workers more "
            "(spark.executor.pyspark.memory), or each a smaller part (placement='auto', or 'bluedove' with "
            "more segments)"
        ) from error


def indexed(subscriptions: pa.Table, domain: Domain, sample: pa.Table | None) -> Matcher:
    """A matcher that has its index, and so can be saved with it: made for events like those of the sample.

    Those are saved with it too. So a small shard is given few: else they would be most of its file.
    """
    matcher = Matcher(subscriptions, domain, threads=1)
    typical = pa.table({}) if sample is None else sample.slice(0, max(EVENTS_MIN, len(subscriptions) // 4))
    matcher.match(typical, on_error="reject")
    return matcher
