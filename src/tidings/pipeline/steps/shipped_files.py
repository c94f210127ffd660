"""Files that Spark brings to its executors, and how it is told to bring them no more.

An executor that joins later is sent every file that was ever added, and runs no task where one of them is gone. Spark
has no call to take a file back, so this reaches for what `addFile` wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from py4j.protocol import Py4JError
from pyspark import SparkContext

log = logging.getLogger("tidings.pipeline")


def withdraw(context: SparkContext, names: Collection[str]) -> bool:
    """Bring files of these names to no executor any more; where that cannot be done, they have to stay."""
    gone = [url for url in context.listFiles if url.rsplit("/", 1)[-1] in names]
    try:
        sessions = context._jsc.sc().addedFiles().values().iterator()
        while sessions.hasNext():
            added = sessions.next()
            for url in gone:
                added.remove(url)
    except Py4JError as error:  # another Spark has other insides
        log.warning("files that are not needed any more are kept: %s", error)
        return False
    return True
