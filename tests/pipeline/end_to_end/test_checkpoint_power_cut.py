"""After a power cut Spark's files may be anything; what its query goes on with loses nothing that was published.

Spark does not sync what it writes to a checkpoint. The store is synced with every micro-batch, and knows how far the
query has come. So whatever a cut has left of the newest files, a start goes on at or before the position that the store
has come to, or refuses the checkpoint as one that is recovered from the store.

    batch         0        1        2
    positions   0 – 9   10 – 19  20 – 29
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.pipeline.power_cuts import hit, hits
from tests.waiting import LAST_RESORT_SECONDS

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings import pipeline
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.pipeline.job_errors import CheckpointError, PipelineError
from tidings.pipeline.sinks.stream_sinks import SharedSink, StoreSink, _compare
from tidings.pipeline.sources.stream_sources import LogEvents
from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import LOG, Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDENTITY = QueryIdentity("log:here", "index", "store:there", "ids")
MOMENTS = {  # the last batch that was planned, that the store has, and that Spark knows to be done
    "batch 2 was planned": (2, 1, 1),
    "batch 2 was loaded": (2, 2, 1),
    "batch 2 was done": (2, 2, 2),
}


class Query:
    """A checkpoint and a store, as they are at some moment."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.store = folder / "query", folder / "store.sqlite"

    def make(self, planned: int, loaded: int, done: int) -> None:
        opened = Checkpoint(self.checkpoint, IDENTITY)
        (self.checkpoint / "metadata").write_text('{"id":"0a0b0c0d-1111-2222-3333-444455556666"}')
        for folder in ("offsets", "commits"):
            (self.checkpoint / folder).mkdir()
        for batch in range(planned + 1):
            offset = json.dumps({"log": 10 * batch + 10, "subscriptions": 1})
            (self.checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')
        for batch in range(done + 1):
            (self.checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        for batch in range(loaded + 1):
            self.load(opened.query, batch)
        opened.release()

    def load(self, query: str, batch: int) -> None:
        with Notifications(self.store) as store:
            table = pa.table({"position": [10 * batch], "subscriptions": [["a"]]})
            store.load([table], query=query, batch=batch, version=1, reached={LOG: 10 * batch + 9})

    def compare(self, checkpoint: Checkpoint) -> None:
        with Notifications(self.store) as store:
            _compare(store, checkpoint)

    @property
    def resume(self) -> int:
        """The position that the store has come to."""
        with Notifications(self.store) as store:
            return store.resume()

    def goes_on_at(self) -> int | None:
        """The position that Spark would read from; None where the checkpoint is refused and the store's is taken."""
        try:
            opened = Checkpoint(self.checkpoint, IDENTITY)
            try:
                opened.check()
                self.compare(opened)
            finally:
                opened.release()
        except CheckpointError:
            return None
        return self._as_spark_does()

    def _as_spark_does(self) -> int:
        """MicroBatchExecution.populateStartOffsets: the last batch that was planned, again unless it is done."""
        planned = max(self._batches("offsets"), default=None)
        if planned is None and not self._batches("commits"):
            return 0
        assert json.loads((self.checkpoint / "metadata").read_text())["id"]
        assert planned is not None
        done = max(self._batches("commits"), default=-1)
        end, start = self._end_of(planned), self._end_of(planned - 1) if planned else 0  # it reads both in any case
        return end if done >= planned else start

    def _batches(self, folder: str) -> list[int]:
        return [int(name) for name in os.listdir(self.checkpoint / folder) if name.isdecimal()]

    def _end_of(self, batch: int) -> int:
        lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        assert lines[0] == "v1"
        end: int = json.loads(lines[2])["log"]
        return end


class SharedStreamQuery(Query):
    """The same of the stream that small domains share, which notes its progress in a file of its own."""

    def load(self, query: str, batch: int) -> None:
        with SharedProgress(self.store) as progress:
            progress.note(query, batch, 10 * batch + 9, {})

    def compare(self, checkpoint: Checkpoint) -> None:
        SharedSink(self.store.parent / "domains", self.store).prepare(checkpoint)

    @property
    def resume(self) -> int:
        with SharedProgress(self.store) as progress:
            return progress.resume


@pytest.mark.parametrize("kind", [Query, SharedStreamQuery])
@pytest.mark.parametrize("at_once", [2, pytest.param(3, marks=pytest.mark.long)])  # files that a cut has hit
@pytest.mark.parametrize("moment", MOMENTS)
def test_whatever_a_cut_leaves_a_query_goes_on_where_the_store_is_or_before(
    moment: str, at_once: int, kind: type[Query], record_property: Callable[[str, object], None]
) -> None:
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    broken, accepted, refused = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="tidings-", dir=in_memory) as folder:
        whole = Path(folder) / "whole"
        whole.mkdir()
        kind(whole).make(*MOMENTS[moment])
        for number, one in enumerate(hits(2, at_once)):
            left = Path(folder) / str(number)
            shutil.copytree(whole, left)
            query = kind(left)
            for name, state in one.items():
                hit(query.checkpoint / name, state)
            try:
                start = query.goes_on_at()
            except Exception as error:  # neither refused in our words nor usable by Spark
                broken.append(f"{one}: {error!r}")
                continue
            if start is not None and start > query.resume:
                broken.append(f"{one}: goes on at {start}, and the store has come to {query.resume}")
            accepted, refused = accepted + (start is not None), refused + (start is None)
            shutil.rmtree(left)
    record_property("cases", accepted + refused + len(broken))
    assert not broken, f"{len(broken)} of {accepted + refused + len(broken)}:\n" + "\n".join(broken[:20])
    assert accepted
    assert refused


# ---------------------------------------------------------------------- with Spark itself

DOMAIN = Domain("readings", [Attribute("n", "bigint")])
SAMPLED = 8


@pytest.fixture(scope="module")
def run_before(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has done three micro-batches."""
    folder = tmp_path_factory.mktemp("whole")
    table = spark.createDataFrame([("even", "n % 2 = 0"), ("all", "TRUE")], "id string, filter string")
    pipeline.compile(table, folder / "index", domain=DOMAIN, placement="replicated")
    with Log(folder / "log") as log:
        for batch in range(3):
            log.append(read_events([{"n": n} for n in range(10 * batch, 10 * batch + 10)], DOMAIN))
            run(folder)
        log.append(read_events([{"n": n} for n in range(30, 35)], DOMAIN))
    return folder


def run(folder: Path, *, recover: bool = False) -> None:
    events, sink = LogEvents(folder / "log", DOMAIN), StoreSink(folder / "store.sqlite")
    running = pipeline.stream(
        events, folder / "index", sink, checkpoint=folder / "query", trigger="now", recover=recover
    )
    with running:
        assert running.wait(LAST_RESORT_SECONDS)


@pytest.mark.spark
@pytest.mark.parametrize("count", [SAMPLED, pytest.param(200, marks=pytest.mark.long)])
def test_a_query_started_after_a_power_cut_notifies_everyone_of_everything_once(
    run_before: Path, count: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", count)
    with tempfile.TemporaryDirectory(prefix="tidings-") as kept:
        shutil.copytree(run_before, Path(kept) / "whole")
        for one in Random(17).sample([found for found in hits(2, 3) if found], count):
            shutil.rmtree(run_before)  # in its own place: a query knows its store by the path
            shutil.copytree(Path(kept) / "whole", run_before)
            for name, state in one.items():
                hit(run_before / "query" / name, state)
            try:
                run(run_before)
            except CheckpointError:
                run(run_before, recover=True)
            except PipelineError as error:
                pytest.fail(f"{one}: {error}")
            with Notifications(run_before / "store.sqlite") as store:
                pairs = sorted(store.pairs())
            expected = [(n, "all") for n in range(35)] + [(n, "even") for n in range(0, 35, 2)]
            assert pairs == sorted(expected), one
