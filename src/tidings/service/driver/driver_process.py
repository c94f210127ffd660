"""The process that matches: `python -m tidings.service.driver.driver_process DIR [--master URL] [--catalogue URL]`.

It follows the catalogue: streams for all domains (see `driver_streams`), and the jobs that the gateway asks for. It
writes the indexes, checkpoints and mailboxes, the answers to jobs, and every second how it does, in driver.json:

    {"pid", "started", "time", "state", "problem", "shared", "domains": {key: {"state", "problem", "reached", …}}}

`reached` of a domain is exclusive: all its events before that position are in its mailboxes. SIGTERM ends it
cleanly; whatever was under way is done again at the next start, with the same outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tidings import pipeline
from tidings.errors import TidingsError
from tidings.pipeline.build.placement_choice import AUTO, checked_name
from tidings.pipeline.runtime.spark_session import STREAMING
from tidings.service.data.data_directory import CATALOGUE, DataDirectory, replace_json
from tidings.service.data.private_files import be_private
from tidings.service.data.scratch_folders import scratch
from tidings.service.driver.domain_adaptation import EVERY_SECONDS, Adapting
from tidings.service.driver.domain_stream import PREFIX, Context
from tidings.service.driver.gateway_jobs import Jobs
from tidings.service.driver.stream_assignment import Sharing, Streams
from tidings.store.catalogue import Catalogue, CatalogueError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.02  # between looks at the catalogue: a subscription waits for it, and the events after it
JOBS_SECONDS = 0.2
STATUS_SECONDS = 1.0
IDLE_SECONDS = 30.0  # that streams have to come to their first micro-batch by themselves, which warms up as well
BUSY_SECONDS = 5.0  # that the catalogue may be locked by others before that is told
CORES = os.cpu_count() or 1
TASKS_A_CORE = 4  # at once: a stream whose events take long to match holds a task, and not a core that others wait for
# Micro-batches are small and there are many: they share the cores fairly with the jobs, and shuffle nothing.
SPARK = STREAMING | {
    "spark.default.parallelism": str(CORES),
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop sets modes itself, whatever the process has
}

_log = logging.getLogger("tidings.service")


class Driver:
    """Runs until it is told to stop."""

    def __init__(
        self,
        data: DataDirectory,
        *,
        master: str = "local[*]",
        catalogue: str | None = None,
        recover: bool = False,
        supervised: bool = False,
        adapt_every_seconds: float = EVERY_SECONDS,
        placement: str = AUTO,
        sharing: Sharing | None = None,
    ) -> None:
        self._data = data
        self._master = master
        self._place = catalogue or str(data.catalogue)
        self._recover = recover
        self._adapt_every_seconds = adapt_every_seconds
        self._placement = checked_name(placement)
        self._supervisor = os.getppid() if supervised else None
        self._stopped = threading.Event()
        self._started = time.time()
        self._state = "starting"
        self._problem: str | None = None
        self._sharing = sharing or Sharing()
        self._streams: Streams | None = None

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        self._data.make()
        self._tell()
        with contextlib.ExitStack() as opened:
            opened.callback(self._told_last)
            catalogue = opened.enter_context(Catalogue(self._place, busy_seconds=BUSY_SECONDS))
            master = f"local[{max(8, TASKS_A_CORE * CORES)}]" if self._master == "local[*]" else self._master
            spark = pipeline.session(master, name="tidings serve", config=SPARK)
            opened.callback(spark.stop)
            threading.Thread(target=self._warm_up, args=(spark, catalogue), name="tidings-warm-up", daemon=True).start()
            adapting = self._adapting(spark)
            if adapting is not None:
                opened.callback(adapting.stop)
            context = Context(spark, self._data, catalogue, self._place, self._recover, adapting)
            jobs = Jobs(context)
            opened.callback(jobs.stop)
            streams = self._streams = Streams(context, self._sharing)
            opened.callback(streams.stop)
            self._state = "running"
            self._follow(context, jobs, streams)
            self._state = "stopping"
            self._tell()

    def _adapting(self, spark: SparkSession) -> Adapting | None:
        if not self._adapt_every_seconds:
            return None
        every, placement = self._adapt_every_seconds, self._placement
        return Adapting(spark, self._data.log, PREFIX, every_seconds=every, placement=placement)

    def _follow(self, context: Context, jobs: Jobs, streams: Streams) -> None:
        seen, looked, told = -1, 0.0, 0.0
        while not self._stopped.wait(LOOK_SECONDS):
            now = time.monotonic()
            try:
                revision = context.catalogue.revision()
                if revision != seen:
                    streams.follow({row.key: row for row in context.catalogue.domains()}, revision)
                    seen = revision
                streams.look()
                if now - looked >= JOBS_SECONDS:
                    looked = now
                    jobs.look()
                self._problem = None
            except CatalogueError as error:  # locked, or a server that is away: streams go on with what they know
                self._problem = str(error)
                self._stopped.wait(STATUS_SECONDS)
            if now - told >= STATUS_SECONDS:
                told = now
                if gone := _spark_is_gone(context.spark):
                    # Crash, and be started again: without its JVM nothing here can be ended in order.
                    _log.critical("Spark is gone (%s); the driver ends", gone)
                    self._state, self._problem = "failed", f"Spark is gone: {gone}"
                    streams.clear()
                    self._tell()
                    os._exit(1)
                self._tell()
                if self._supervisor not in (None, os.getppid()):
                    _log.warning("the supervisor is gone; ending")
                    return

    def _warm_up(self, spark: SparkSession, catalogue: Catalogue) -> None:
        """Where there is nothing to match yet: what waits since a crash is not to wait for this too."""
        with contextlib.suppress(CatalogueError):
            if catalogue.domains():
                self._stopped.wait(IDLE_SECONDS)
            if not self._stopped.is_set() and not (self._streams is not None and self._streams.have_matched):
                _warm_up(spark)

    def _tell(self) -> None:
        told = {"pid": os.getpid(), "started": self._started, "time": time.time(), "state": self._state}
        told |= {"problem": self._problem, "shared": None, "domains": {}}
        if self._streams is not None:
            told |= {"shared": self._streams.shared_status(), "domains": self._streams.status()}
        try:
            replace_json(self._data.driver_status, told)
        except OSError as error:  # a full disk, which the streams tell of themselves
            _log.error("cannot write %s: %s", self._data.driver_status, error)

    def _told_last(self) -> None:
        self._state = "stopped"
        if self._streams is not None:
            self._streams.clear()
        self._tell()


def _spark_is_gone(spark: SparkSession) -> str | None:
    """Why nothing can be asked of Spark any more; None where all is well."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return f"its JVM ended with status {process.returncode}"
    try:
        jvm: Any = spark.sparkContext._jsc
        return "its context was stopped" if jvm.sc().isStopped() else None
    except Exception as error:  # whatever py4j raises where nobody answers
        return f"its JVM does not answer: {error}"


def _warm_up(spark: SparkSession) -> None:
    """Have Python workers started and kernels loaded before the first event comes, which would wait for them."""
    try:
        events = spark.range(0, 2_000, numPartitions=2).toDF("n")
        filters = spark.createDataFrame([(1, "n > 5"), (2, "n BETWEEN 3 AND 7 OR n = 9")], "id bigint, filter string")
        pipeline.match(events, filters, output="counts").collect()
    except Exception as error:  # the streams will tell what is wrong, if anything is
        _log.debug("cannot warm up: %s", error)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tidings.service.driver.driver_process", description="Match on Spark."
    )
    parser.add_argument("directory", metavar="DIR", help="the data directory of the service")
    parser.add_argument("--master", default="local[*]", metavar="URL", help="the Spark master")
    described = f"of PostgreSQL; without, and without {CATALOGUE}, a file of the data directory"
    parser.add_argument("--catalogue", metavar="URL", default=os.environ.get(CATALOGUE), help=described)
    parser.add_argument("--recover", action="store_true", help="go on without a checkpoint that does not fit")
    described = "between looks at whether another View or other groups would pay; 0: never"
    parser.add_argument("--adapt-every", type=float, default=EVERY_SECONDS, metavar="SECONDS", help=described)
    parser.add_argument("--placement", default=AUTO, metavar="NAME", help="which one, or auto: what is cheapest")
    described = "subscriptions up to which domains share a stream; 0: none does"
    parser.add_argument("--share-up-to", type=int, metavar="N", help=described)
    parser.add_argument("--supervised", action="store_true", help="end when the process that started this one has")
    given: Any = parser.parse_args(arguments)
    be_private()
    logging.basicConfig(level=logging.INFO, format="driver: %(levelname)s: %(message)s", stream=sys.stderr)
    for talkative in ("py4j", "tidings.pipeline"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    data = DataDirectory(given.directory)
    driver = Driver(
        data,
        master=given.master,
        catalogue=given.catalogue,
        recover=given.recover,
        supervised=given.supervised,
        adapt_every_seconds=given.adapt_every,
        placement=given.placement,
        sharing=None if given.share_up_to is None else Sharing(subscriptions=given.share_up_to),
    )
    signal.signal(signal.SIGTERM, lambda *_: driver.stop())  # Ctrl-C is Spark's, which raises KeyboardInterrupt
    try:
        data.make()
        with scratch(data):
            driver.run()
    except KeyboardInterrupt:
        return 130
    except TidingsError as error:
        print(f"driver: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
