"""A saved matcher: one file that is mapped, not read, so that the processes of a machine share one copy.

    preamble   64 bytes: magic, format, checksum and place of the header, size of the file, version, own checksum
    blobs      the arrays, each at a multiple of 64 bytes and padded to the next, with zeros
    header     JSON: the structure that `codec` makes, and of each blob its place, size and checksum

Checksums (CRC-32) cover every byte, so that whatever was damaged is refused; they are no defence
against a file that was forged. Nothing in a file is executed.
"""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import secrets
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import SubscriptionError
from tidings.matching.saving.value_codec import Blob, Fields, decode, encode, stored_fields, write_arrow

FORMAT = 4  # to be raised with any change of what the preamble, the header or an array means
ALIGNMENT = 64

_MAGIC = b"\x89TDNGS\r\n"  # no text begins so, and a transfer that translates line ends spoils it
_VERSION_SIZE = 20
_PREAMBLE = struct.Struct(f"<8sIIQQQ{_VERSION_SIZE}s")  # and its checksum
_CHECKSUM = struct.Struct("<I")
_PREAMBLE_SIZE = _PREAMBLE.size + _CHECKSUM.size
_LARGE = 1 << 20  # bytes
_AGAIN = "make the matcher again from its subscriptions, and save it"

FilePath = str | os.PathLike[str]
assert _PREAMBLE_SIZE == ALIGNMENT


class _Preamble(NamedTuple):
    magic: bytes
    format: int
    header_checksum: int
    header_at: int
    header_size: int
    file_size: int
    version: bytes


class _Place(NamedTuple):
    """Of a blob in the file; the checksum covers the padding too."""

    at: int
    size: int
    checksum: int

    @property
    def end(self) -> int:
        return self.at + self.size + -self.size % ALIGNMENT


def _known() -> Fields:
    """What the packages up to matching keep in frozen records."""
    ours = ("tidings.model.", "tidings.xml.", "tidings.filter.", "tidings.matching.")
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(ours)]
    return stored_fields(modules)


def _version() -> str:
    """Of Tidings, as far as a preamble has room for it. The package is asked, not imported: it is made of this."""
    version: str = sys.modules["tidings"].__version__
    return version[:_VERSION_SIZE]


# ---------------------------------------------------------------------- writing


def save(path: FilePath, contents: Any) -> None:
    """Write a file, in place of the one there may be: after a crash there is the old one or the new, never a half."""
    path = os.fsdecode(path)
    _refuse_big_endian(path)
    try:
        with _replacing(Path(os.path.realpath(path))) as file:
            _write(file, contents)
    except OSError as error:
        raise SubscriptionError(f"matcher: cannot save to '{path}': {error.strerror or error}") from error


def _write(file: IO[bytes], contents: Any) -> None:
    structure, blobs = encode(contents, _known())
    file.write(bytes(_PREAMBLE_SIZE))
    places = [_write_blob(file, blob) for blob in blobs]
    header = json.dumps(structure | {"blobs": places}, separators=(",", ":")).encode()
    at = file.tell()
    file.write(header)
    preamble = _PREAMBLE.pack(
        *_Preamble(_MAGIC, FORMAT, zlib.crc32(header), at, len(header), at + len(header), _version().encode())
    )
    file.seek(0)
    file.write(preamble + _CHECKSUM.pack(zlib.crc32(preamble)))


def _write_blob(file: IO[bytes], blob: Blob) -> _Place:
    at = file.tell()
    sink = _Sink(file)
    if isinstance(blob, np.ndarray):
        sink.write(blob.reshape(-1).view(np.uint8))
    else:
        write_arrow(blob, sink)
    size = sink.size
    sink.write(bytes(-size % ALIGNMENT))
    return _Place(at, size, sink.checksum)


class _Sink:
    """A file as Arrow writes to it, with the checksum of what went there."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.checksum = 0

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        self.size += memoryview(data).nbytes
        return self._file.write(data)

    def flush(self) -> None:
        pass  # the file is flushed once, when all is written

    def close(self) -> None:
        pass  # of the blob, not of the file


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside the one it is to replace; it does so once it is written and on the disk."""
    beside = path.with_name(f".tidings-{secrets.token_hex(8)}.tmp")
    if path.is_dir():
        raise IsADirectoryError("this is a folder; name a file in it")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# ---------------------------------------------------------------------- reading


def load(path: FilePath) -> Any:
    """What was saved, its arrays over the mapped file; a file that is damaged or not ours is refused."""
    path = os.fsdecode(path)
    _refuse_big_endian(path)
    mapped = memoryview(_mapped(path))
    preamble = _read_preamble(path, mapped)
    header = mapped[preamble.header_at : preamble.header_at + preamble.header_size]
    if zlib.crc32(header) != preamble.header_checksum:
        raise _damaged(path, "the header is not what was written")
    try:
        with _without_collection():
            structure = json.loads(bytes(header))
            places = [_Place(*place) for place in structure["blobs"]]
            _verify(path, mapped, places, preamble.header_at)
            return decode(structure, [mapped[place.at : place.at + place.size] for place in places], _known())
    except SubscriptionError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, pa.ArrowException) as error:
        raise SubscriptionError(
            f"matcher: '{path}' is whole, but this Tidings cannot read it: {error}; {_AGAIN}"
        ) from error


def _mapped(path: str) -> mmap.mmap:
    """The file in memory: pages are shared by all processes as long as nobody writes to them.

    They are mapped so that they could be written to, each process to its own copy, for the sake of the kernels:
    those that are compiled for arrays in memory then take these too.
    """
    try:
        if not os.path.exists(path):
            raise SubscriptionError(f"matcher: there is no file '{path}'; Matcher.save writes one")
        if not os.path.isfile(path):
            raise SubscriptionError(f"matcher: '{path}' is no file; name the one that Matcher.save wrote")
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise _damaged(path, "it is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"matcher: no room in memory for '{path}', {os.path.getsize(path):,} bytes") from error
        raise SubscriptionError(f"matcher: cannot read '{path}': {error.strerror or error}") from error


def _read_preamble(path: str, mapped: memoryview) -> _Preamble:
    start = bytes(mapped[:_PREAMBLE_SIZE])
    if not start.startswith(_MAGIC[: len(start)]):
        raise SubscriptionError(f"matcher: '{path}' is no saved matcher; name a file that Matcher.save wrote")
    if len(start) < _PREAMBLE_SIZE:
        raise _damaged(path, f"it is cut short, to {len(start)} bytes")
    preamble = _Preamble(*_PREAMBLE.unpack_from(start))
    if (zlib.crc32(start[: _PREAMBLE.size]),) != _CHECKSUM.unpack_from(start, _PREAMBLE.size):
        raise _damaged(path, f"its first {_PREAMBLE_SIZE} bytes are not what was written")
    version = preamble.version.rstrip(b"\0").decode(errors="replace")
    if preamble.format > FORMAT:
        raise SubscriptionError(
            f"matcher: '{path}' is of format {preamble.format}, by Tidings {version}; this is Tidings "
            f"{_version()}, which reads format {FORMAT}; upgrade Tidings, or {_AGAIN}"
        )
    if preamble.format < FORMAT or version != _version():
        raise SubscriptionError(
            f"matcher: '{path}' was saved by Tidings {version}, and this is {_version()}, whose "
            f"indexes may differ; {_AGAIN}"
        )
    if preamble.file_size != len(mapped):
        what = "cut short" if len(mapped) < preamble.file_size else "too long"
        raise _damaged(path, f"it is {what}: {len(mapped):,} bytes of {preamble.file_size:,}")
    return preamble


def _verify(path: str, mapped: memoryview, places: Sequence[_Place], end: int) -> None:
    """Blobs follow each other without a gap, each as it was written."""
    starts = [_PREAMBLE_SIZE, *(place.end for place in places)]
    if [*(place.at for place in places), end] != starts:
        raise ValueError("its arrays do not follow each other")

    def checksum(place: _Place) -> int:
        return zlib.crc32(mapped[place.at : place.end])

    # Checksums are computed outside the interpreter's lock, where they are worth it.
    large, small = ([place for place in places if (place.size >= _LARGE) == wanted] for wanted in (True, False))
    with ThreadPoolExecutor() as pool:
        checksums = chain(pool.map(checksum, large), map(checksum, small))
        for place, found in zip([*large, *small], checksums, strict=True):
            if found != place.checksum:
                raise _damaged(path, f"the bytes {place.at:,} to {place.end:,} are not what was written")


@contextmanager
def _without_collection() -> Iterator[None]:
    """A header may have a hundred thousand objects, all of which stay: to look for garbage takes twice their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _damaged(path: str, how: str) -> SubscriptionError:
    return SubscriptionError(f"matcher: '{path}' is damaged: {how}; copy it again, or {_AGAIN}")


def _refuse_big_endian(path: str) -> None:
    if sys.byteorder != "little":
        raise SubscriptionError(
            f"matcher: '{path}': saved matchers are for little-endian machines, and this one is not; "
            "make the matcher from its subscriptions instead"
        )
