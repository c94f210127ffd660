"""One filter over stored events: the positions of those that satisfy it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.pipeline.job_errors import told_briefly
from tidings.pipeline.runtime.spark_workarounds import numbered


def positions_matched(events: DataFrame, filter: str, domain: Domain, *, prefix: str) -> npt.NDArray[np.int64]:
    """Of events that `read_log` answers with a prefix and `on_error="reject"`; in their order."""
    step = partial(_matched, tuple(events.columns), domain.to_json(), filter, prefix)
    with told_briefly():
        found: Any = numbered(events).mapInArrow(step, "position bigint").toArrow()
    return np.sort(np.asarray(found["position"].combine_chunks(), np.int64))


def _matched(
    names: tuple[str, ...], domain: str, filter: str, prefix: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Spark runs a task for each core already: one thread each.
    matcher = Matcher([(0, filter)], Domain.from_json(domain), threads=1)
    attributes = [name for name in names if not name.startswith(prefix)]
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(names))
        fit = batch.filter(batch.column(f"{prefix}rejected").is_null())
        if len(fit):
            rows: Any = pa.array(matcher.match(fit.select(attributes), on_error="reject").events, pa.int64())
            yield pa.RecordBatch.from_arrays([fit.column(f"{prefix}position").take(rows)], names=["position"])
