from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for the whole run: it takes seconds to start."""
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    from tidings.testing.spark import local_session

    session = local_session()
    yield session
    session.stop()
