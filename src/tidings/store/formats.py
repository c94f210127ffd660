"""The number of each format on the disk, and the error for another one.

A number is raised when software that knows the last one would go wrong. A file with another number is neither read,
upgraded nor changed: the version of Tidings that wrote it can read it.
"""

from __future__ import annotations

from pathlib import Path

from tidings.errors import TidingsError

LOG = 2
CATALOGUE = 4
SHARED_PROGRESS = 1
DELIVERIES = 1
MAILBOXES = 3
INDEX = 2
CHECKPOINT = 1

_MAGIC = b"SQLite format 3\0"


class FormatError(TidingsError):
    """A file has the format of another version of Tidings. It was left as it is."""


def other_format(what: str, place: object, found: object, known: int) -> FormatError:
    return FormatError(
        f"{what}: {place} has format {found}, and this is Tidings with format {known}; use the version of Tidings that "
        "wrote it: it was left as it is"
    )


def check_header(what: str, path: Path, application: int, format_: int) -> None:
    """Raise if a SQLite file of ours has another format; without opening it, as SQLite might write to it."""
    try:
        with path.open("rb") as file:
            header = file.read(72)
    except OSError:
        return  # missing, or unreadable, which SQLite reports
    if len(header) == 72 and header.startswith(_MAGIC):
        version, kind = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:72], "big")
        if kind == application and version != format_:
            raise other_format(what, path, version, format_)
