"""What turns a function into machine code, and keeps that for the processes to come.

    @kernel
    def count(numbers): ...

    @kernel(inline="always")
    def one_of_many_steps(number): ...

numba's own cache numbers the files of a function's signatures, in an index that it reads and writes without a lock.
Processes that compile at once, as Spark's do after an installation, may give two signatures one number, and reading
the one gives the other: "Invalid use of type(CPUDispatcher(…))", for good. Here a file's name says all that it
depends on, so that there is nothing to agree on: the signature, the processor, numba, and the sources of all kernels,
since machine code holds that of the functions it calls.
"""

# mypy: disable-error-code="attr-defined, misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numba
from llvmlite.binding import get_host_cpu_name
from numba.core import config, event
from numba.core.caching import FunctionCache, IndexDataCacheFile

_FOLDERS = ("kernels", "xml", "filter", "matching", "systems/sonnet")  # where kernels are
Inlined = Literal["always", "never"]


def kernel(function: Any = None, *, inline: Inlined = "never") -> Any:
    """Decorates a function that numba compiles when it is first called; it runs without Python's lock."""
    if function is None:
        return lambda function: kernel(function, inline=inline)
    compiled: Any = numba.njit(nogil=True, inline=inline)(function)
    with contextlib.suppress(RuntimeError):  # there is no folder that could be written to: each process compiles
        compiled._cache = _Kept(function)
    return compiled


class _Kept(FunctionCache):
    """The machine code of one function, a file a signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), _sources()
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp)

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # the disk is full, or may not be written to any more
            super().save_overload(sig, data)


class _Files(IndexDataCacheFile):
    """Files whose names say what is in them, without an index; written whole or not at all."""

    def load(self, key: Any) -> Any:
        try:
            return self._load_data(self._named(key))
        except (OSError, EOFError, pickle.UnpicklingError):  # not compiled yet, or no whole file
            return None

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._named(key), data)

    def _named(self, key: Any) -> str:
        depends_on = repr((self._version, self._source_stamp, key))
        return str(self._data_name(int(hashlib.sha256(depends_on.encode()).hexdigest()[:16], 16)))


@cache
def _sources() -> str:
    """What changes with the source of any kernel."""
    root = Path(__file__).parents[1]
    found = (path for folder in _FOLDERS for path in sorted((root / folder).rglob("*.py")))
    stats = ((path.relative_to(root).as_posix(), path.stat()) for path in found)
    return repr([(name, found.st_mtime_ns, found.st_size) for name, found in stats])


def were_compiled() -> bool:
    """Whether somebody said so of these kernels, on this kind of processor, since they changed."""
    return _compiled_mark().exists()


def say_compiled() -> None:
    """Say that what is usually matched has been matched once here; if no file can be written, nobody is told."""
    with contextlib.suppress(OSError):
        _compiled_mark().parent.mkdir(parents=True, exist_ok=True)
        _compiled_mark().touch()


def _compiled_mark() -> Path:
    depends_on = repr((numba.__version__, get_host_cpu_name(), _sources()))
    return _folder() / f"tidings-compiled-{hashlib.sha256(depends_on.encode()).hexdigest()[:16]}"


def _folder() -> Path:
    return Path(config.CACHE_DIR or Path(__file__).parent / "__pycache__")


SAID_FOR_SECONDS = 600.0  # by one process for the others
_MARK = "tidings-compiles"


class Notice(event.Listener):
    """Hears of every compilation by numba; what numba finds in its cache is not compiled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard = False

    def on_start(self, event: Any) -> None:
        if not self._heard and (event.data["dispatcher"].py_func.__module__ or "").startswith("tidings."):
            self._heard = True
            if _is_first(self._folder / _MARK):
                print(
                    "Tidings compiles its kernels for this machine: once after an installation, some seconds.",
                    file=sys.stderr,
                )

    def on_end(self, event: Any) -> None:
        pass


def _is_first(mark: Path) -> bool:
    """Whether no other process has said it recently; if no file can be written, each says it for itself."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return _is_stale(mark)
    except OSError:
        return True
    return True


def _is_stale(mark: Path) -> bool:
    try:
        if time.time() - mark.stat().st_mtime < SAID_FOR_SECONDS:
            return False
        os.utime(mark)
    except OSError:
        pass
    return True


event.register("numba:compile", Notice(_folder()))
