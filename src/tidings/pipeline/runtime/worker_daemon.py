"""Spark's own daemon, which forks Python workers, with what they import imported and their kernels loaded before.

A worker is then there in some milliseconds; else each imports for about a second, and an event that needs one more
worker waits for that. What is imported here starts no thread of Python's, and the one thread of the libraries under it
(jemalloc's, which handles forks itself) holds no lock that a worker needs.
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nobody multiplies matrices here, and it would start threads

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import tidings.pipeline.sinks.store_sink
import tidings.pipeline.sources.log_source
import tidings.pipeline.steps.counted_lists
import tidings.pipeline.steps.match_tasks
import tidings.xml.document  # noqa: F401
from tidings.kernels.decorator import were_compiled
from tidings.pipeline.runtime.warm_up import match_here

if __name__ == "__main__":
    if were_compiled():  # else it would take long, and the first event would wait for more than it needs
        match_here()
    gc.freeze()  # what is there already is never collected, nor copied for a look at it
    manager()
