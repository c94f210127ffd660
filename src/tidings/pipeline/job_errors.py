"""Errors of a job on Spark that are not the fault of an event, a filter or a domain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tidings.errors import TidingsError


class PipelineError(TidingsError):
    """For the person who runs the job: no Java, a path that cannot be written, a damaged index."""


class CheckpointError(PipelineError):
    """A checkpoint that is damaged, or that does not fit its store: `recover` goes on without it."""


@contextmanager
def brief_errors() -> Iterator[None]:
    """Raises what Spark raises as one line: the cause, without the stacks of two languages."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError(brief(str(error))) from error


def brief(message: str) -> str:
    """Returns the cause in what Spark says: the last line of a Python traceback, else the first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if "Traceback (most recent call last):" in message:
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
        lines = [re.sub(r"^tidings\.[\w.]+: ", "", line) for line in raised[-1:]] or lines
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    caused = [line for line in lines if line.startswith("Caused by:")]
    if lines and "Job aborted" in lines[0] and caused:
        return caused[-1].removeprefix("Caused by: ")
    return lines[0] if lines else "Spark failed without a message"
