from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An example may be the first to compile a kernel, or run on a busy machine: how long it takes is no law.
settings.register_profile("tidings", deadline=None)
settings.load_profile("tidings")

OLDEST_JAVA = 17  # that Spark runs on
INSTALL_JAVA = "Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17"


def java_missing() -> str | None:
    """Why Spark cannot start here, and the line that changes it; None where it can."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return f"Spark needs Java {OLDEST_JAVA} or newer, and there is none ({INSTALL_JAVA})"
    written = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', written)
    if found is None or int(found[1]) < OLDEST_JAVA:
        return (
            f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is {found[1] if found else 'none'} ({INSTALL_JAVA})"
        )
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take minutes run only where they are asked for by name: `make test-long`."""
    if "long" not in config.getoption("-m"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for the whole run: it takes seconds to start."""
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    if (reason := java_missing()) is not None:
        pytest.skip(reason)
    from tidings.testing.spark import local_session

    session = local_session()
    yield session
    session.stop()
