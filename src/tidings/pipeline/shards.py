"""Shard files on a worker: found where Spark put them, mapped into memory, and kept across batches and queries.

Python workers live as long as their executor, so what this module keeps is there for the next
task. Files are named by the content they were built from: another version has other names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.pipeline.errors import PipelineError

SUFFIX = ".tidings"
EVENTS_MIN = 100  # by which the index of a shard is chosen, however small it is

_loaded: OrderedDict[str, Matcher] = OrderedDict()  # by file name, the least recently used first


def load_shards(names: Sequence[str], *, kept: int) -> list[Matcher]:
    """The matchers of these shard files; afterwards at most `kept` stay loaded, and these."""
    matchers = [_load(name) for name in names]
    for name in list(_loaded):
        if len(_loaded) <= kept:
            break
        if name not in names:
            del _loaded[name]
    return matchers


def _load(name: str) -> Matcher:
    if name not in _loaded:
        path = SparkFiles.get(name)
        if not Path(path).exists():
            raise PipelineError(
                f"the index file {name} did not reach this executor; was the index's directory removed?"
            )
        _loaded[name] = Matcher.load(path, threads=1)  # Spark runs a task for each core already
    _loaded.move_to_end(name)
    return _loaded[name]


def indexed(subscriptions: pa.Table, domain: Domain, sample: pa.Table | None) -> Matcher:
    """A matcher that has its index, and so can be saved with it: made for events like those of the sample.

    Those are saved with it too. So a small shard is given few: else they would be most of its file.
    """
    matcher = Matcher(subscriptions, domain, threads=1)
    typical = pa.table({}) if sample is None else sample.slice(0, max(EVENTS_MIN, len(subscriptions) // 4))
    matcher.match(typical, on_error="reject")
    return matcher
