"""The process that matches: `python -m tidings.service.driver.driver_process DIR [--master URL] [--catalogue URL]`.

It follows the catalogue: it keeps streams for all domains (see `stream_assignment`), and does the jobs that the
gateway asks for. It writes the indexes, checkpoints and mailboxes, the answers to jobs, and every second its status,
driver.json:

    {"pid", "started", "time", "state", "problem", "shared", "domains": {key: {"state", "problem", "reached", …}}}

`reached` of a domain is exclusive: all its events before that position are in its mailboxes. SIGTERM ends the process
cleanly; unfinished work is done again at the next start, with the same result.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tidings import pipeline
from tidings.errors import TidingsError
from tidings.kernels.decorator import were_compiled
from tidings.pipeline.build.placement_choice import checked_name
from tidings.pipeline.runtime.spark_session import STREAMING
from tidings.pipeline.runtime.warm_up import match_every_kind, match_numbers
from tidings.service.data.data_directory import CATALOGUE, DataDirectory, replace_json
from tidings.service.data.private_files import be_private
from tidings.service.data.scratch_folders import scratch
from tidings.service.driver.domain_adaptation import EVERY_SECONDS, Adapting
from tidings.service.driver.gateway_jobs import Jobs
from tidings.service.driver.stream_assignment import Sharing, Streams
from tidings.service.driver.stream_thread import DriverContext
from tidings.store.catalogue import Catalogue, CatalogueError
from tidings.systems.interface import AUTO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.02  # between looks at the catalogue: a new subscription waits for one, and the events after it
JOBS_SECONDS = 0.2
STATUS_SECONDS = 1.0
IDLE_SECONDS = 30.0  # that streams have for their first micro-batch, which warms up as well
BUSY_SECONDS = 5.0  # that the catalogue may be locked by others before that is a problem
CORES = os.cpu_count() or 1
TASKS_A_CORE = 4  # at once: a stream whose events take long to match holds a task, and keeps no core from others
# There are many small micro-batches: they share the cores fairly with the jobs, and shuffle nothing.
SPARK = STREAMING | {
    "spark.default.parallelism": str(CORES),
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop sets modes itself, whatever the umask of the process
}

_log = logging.getLogger("tidings.service")


class Driver:
    """Runs streams and jobs until it is told to stop."""

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
        self._write_status()
        with contextlib.ExitStack() as opened:
            opened.callback(self._write_last_status)
            catalogue = opened.enter_context(Catalogue(self._place, busy_seconds=BUSY_SECONDS))
            master = f"local[{max(8, TASKS_A_CORE * CORES)}]" if self._master == "local[*]" else self._master
            spark = pipeline.session(master, name="tidings serve", config=SPARK)
            opened.callback(spark.stop)
            threading.Thread(target=self._warm_up, args=(spark, catalogue), name="tidings-warm-up", daemon=True).start()
            adapting = self._adapting(spark)
            opened.callback(adapting.stop)
            context = DriverContext(spark, self._data, catalogue, self._place, self._recover, adapting)
            jobs = Jobs(context)
            opened.callback(jobs.stop)
            streams = self._streams = Streams(context, self._sharing)
            opened.callback(streams.stop)
            self._state = "running"
            self._follow(context, jobs, streams)
            self._state = "stopping"
            self._write_status()

    def _adapting(self, spark: SparkSession) -> Adapting:
        every = self._adapt_every_seconds or math.inf
        return Adapting(spark, self._data.log, every_seconds=every, placement=self._placement)

    def _follow(self, context: DriverContext, jobs: Jobs, streams: Streams) -> None:
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
            except CatalogueError as error:  # locked, or its server is down: streams continue with what they have
                self._problem = str(error)
                self._stopped.wait(STATUS_SECONDS)
            if now - told >= STATUS_SECONDS:
                told = now
                if gone := _why_spark_stopped(context.spark):
                    # The supervisor starts another driver: without its JVM, nothing here can be closed in order.
                    _log.critical("Spark has stopped (%s); the driver ends", gone)
                    self._state, self._problem = "failed", f"Spark has stopped: {gone}"
                    streams.clear()
                    self._write_status()
                    os._exit(1)
                self._write_status()
                if self._supervisor not in (None, os.getppid()):
                    _log.warning("the supervisor has ended; the driver ends too")
                    return

    def _warm_up(self, spark: SparkSession, catalogue: Catalogue) -> None:
        """Warm up unless a stream does: events that wait since a crash must not wait for this too.

        After an installation, kernels are compiled whatever streams do: else the first who publishes XML, say, would
        hold up all who share a stream with them.
        """
        with contextlib.suppress(CatalogueError):
            if not were_compiled():
                match_every_kind(spark)
                return
            if catalogue.domains():
                self._stopped.wait(IDLE_SECONDS)
            if not self._stopped.is_set() and not (self._streams is not None and self._streams.have_matched):
                match_numbers(spark)

    def _write_status(self) -> None:
        status = {"pid": os.getpid(), "started": self._started, "time": time.time(), "state": self._state}
        status |= {"problem": self._problem, "shared": None, "domains": {}}
        if self._streams is not None:
            status |= {"shared": self._streams.shared_status(), "domains": self._streams.status()}
        try:
            replace_json(self._data.driver_status, status)
        except OSError as error:  # a full disk, which the streams report themselves
            _log.error("cannot write %s: %s", self._data.driver_status, error)

    def _write_last_status(self) -> None:
        self._state = "stopped"
        if self._streams is not None:
            self._streams.clear()
        self._write_status()


def _why_spark_stopped(spark: SparkSession) -> str | None:
    """Returns why Spark cannot be used any more; None if it can."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return f"its JVM ended with status {process.returncode}"
    try:
        jvm: Any = spark.sparkContext._jsc
        return "its context was stopped" if jvm.sc().isStopped() else None
    except Exception as error:  # py4j raises many kinds if the JVM does not respond
        return f"its JVM does not respond: {error}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tidings.service.driver.driver_process", description="Match on Spark."
    )
    parser.add_argument("directory", metavar="DIR", help="the data directory of the service")
    parser.add_argument("--master", default="local[*]", metavar="URL", help="the Spark master")
    described = f"postgresql://…; without it, and without {CATALOGUE} set, a file of the data directory"
    parser.add_argument("--catalogue", metavar="URL", default=os.environ.get(CATALOGUE), help=described)
    parser.add_argument(
        "--recover", action="store_true", help="continue although events were removed before they were matched"
    )
    described = "how often to look whether another placement, or mailboxes by groups, would pay; 0: never"
    parser.add_argument("--adapt-every", type=float, default=EVERY_SECONDS, metavar="SECONDS", help=described)
    parser.add_argument(
        "--placement",
        default=AUTO,
        metavar="NAME",
        help="the placement of domains that have their own stream; auto: the cheapest",
    )
    described = "domains with up to N subscriptions share one stream; 0: every domain has its own"
    parser.add_argument("--share-up-to", type=int, metavar="N", help=described)
    parser.add_argument("--supervised", action="store_true", help="end when the parent process ends")
    given: Any = parser.parse_args(arguments)
    be_private()
    logging.basicConfig(level=logging.INFO, format="driver: %(levelname)s: %(message)s", stream=sys.stderr)
    for verbose in ("py4j", "tidings.pipeline"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
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
