"""Tables in files, of whatever file system the session knows: Parquet, JSON and CSV in, Parquet and JSON out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidings.pipeline.job_errors import PipelineError, brief_errors

_READERS: dict[str, tuple[str, dict[str, str]]] = {
    ".parquet": ("parquet", {}),
    ".json": ("json", {"multiLine": "true", "mode": "FAILFAST"}),
    ".jsonl": ("json", {"mode": "FAILFAST"}),
    ".ndjson": ("json", {"mode": "FAILFAST"}),
    ".csv": ("csv", {"header": "true", "inferSchema": "true", "escape": '"', "mode": "FAILFAST"}),
}
_WRITERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def read_frame(spark: SparkSession, path: str) -> DataFrame:
    """The table in a file, or in a directory of files: by its suffix, or by those of the files in it."""
    suffix = _suffix(path) or _suffix_within(spark, path)
    if suffix not in _READERS:
        raise PipelineError(
            f"{path}: tables are read from {', '.join(_READERS)}, and this is {suffix or 'none of them'}"
        )
    format_, options = _READERS[suffix]
    with brief_errors():
        return spark.read.format(format_).options(**options).load(path)


def output_format(path: str) -> str:
    """The format in which a table is written to a path, by its suffix."""
    if _suffix(path) not in _WRITERS:
        raise PipelineError(f"{path}: tables are written to {', '.join(_WRITERS)}; end the name in one of them")
    return _WRITERS[_suffix(path)]


def rejects_path(path: str) -> str:
    """Where the rejects of a job go, beside its output."""
    return path.rstrip("/").removesuffix(_suffix(path)) + ".rejects" + _suffix(path)


@contextmanager
def outputs(spark: SparkSession, *paths: str) -> Iterator[dict[str, str]]:
    """Where to write, for each path: the tables are renamed to their paths once all are complete.

    A path that is there already is refused, and after a failure nothing is left.
    """
    files = {path: _File(spark, path) for path in paths}
    for path, file in files.items():
        if file.exists():
            raise PipelineError(f"{path} is there already; remove it, or write to another")
    # A name that begins so is hidden: it is not taken for a finished table.
    beside = {path: _File(spark, file.beside(f"_unfinished-{secrets.token_hex(4)}-")) for path, file in files.items()}
    try:
        with brief_errors():
            yield {path: file.path for path, file in beside.items()}
        for path, file in beside.items():
            if file.exists():
                file.rename(files[path])
    finally:
        for file in beside.values():
            file.remove()


class _File:
    """A file or directory of Hadoop's file systems."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    @property
    def path(self) -> str:
        return str(self._path.toString())

    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def names(self) -> list[str]:
        return [status.getPath().getName() for status in self._files.listStatus(self._path)]

    def beside(self, prefix: str) -> str:
        directory = self._path.getParent()
        name = prefix + self._path.getName()
        return name if directory is None or not directory.toString() else f"{directory.toString().rstrip('/')}/{name}"

    def rename(self, to: _File) -> None:
        if not self._files.rename(self._path, to._path):
            raise PipelineError(f"cannot rename {self.path} to {to.path}")

    def remove(self) -> None:
        self._files.delete(self._path, True)


def _suffix(path: str) -> str:
    name = path.rstrip("/").rsplit("/", 1)[-1]
    return "." + name.rsplit(".", 1)[1].lower() if "." in name.lstrip(".") else ""


def _suffix_within(spark: SparkSession, path: str) -> str:
    file = _File(spark, path)
    if not file.exists():
        raise PipelineError(f"{path}: there is no such file")
    found = {_suffix(name) for name in file.names() if not name.startswith(("_", "."))} & set(_READERS)
    if len(found) > 1:
        raise PipelineError(f"{path}: the directory has files of several kinds ({', '.join(sorted(found))})")
    return next(iter(found), "")
