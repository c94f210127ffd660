from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Compiled modules are kept, whatever the environment says: tests start many processes, and each would compile
# hundreds of modules again. They lie apart from the sources.
BYTECODE = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# An example may be the first to compile a kernel, or run on a busy machine: how long it takes is no law.
# A quarter of what Hypothesis does by itself: `make test-long` tries far more.
settings.register_profile("tidings", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidings")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Every core for tests without Spark; two processes with it, as most of its time goes into waiting for it."""
    cores = os.cpu_count() or 1
    return cores if config.getoption("-m").startswith("not spark") else min(2, cores)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take minutes run only where they are asked for by name: `make test-long`."""
    if "long" not in config.getoption("-m"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for the whole run: it takes seconds to start."""
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from tidings.pipeline import PipelineError
    from tidings.testing.spark_judge import local_session

    try:
        session = local_session()
    except PipelineError as no_java:
        pytest.skip(str(no_java))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka() -> Any:
    """What starts a real broker of Kafka, where there can be one."""
    path = Path(__file__).parent / "pipeline" / "end_to_end" / "kafka_broker.py"  # by its path: tests are no package
    spec = importlib.util.spec_from_file_location("kafka_broker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def start() -> Any:
        try:
            return module.Broker()
        except module.Unavailable as missing:
            warnings.warn(f"Kafka is not tested: {missing}", stacklevel=1)
            pytest.skip(str(missing))

    return start


@pytest.fixture(scope="module")
def broker(kafka: Any) -> Iterator[Any]:
    """A broker for the tests of one file, each of which has topics of its own."""
    with kafka() as ready:
        yield ready
