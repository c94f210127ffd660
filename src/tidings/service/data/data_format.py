"""format.json: the formats that the files of a data directory have, and which version of Tidings made it.

    {"made_by": "tidings 0.1.0", "data directory": 1, "log": 1, "catalogue": 2, …}

It is the first file of a directory, and is read before any other is opened. A directory with other numbers is left
as it is, and so is one with files and without this one: it is of something else.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from tidings import __version__
from tidings.store import formats
from tidings.store.formats import FormatError
from tidings.store.log.log_files import sync_directory

FORMAT_FILE = "format.json"
FORMATS = {
    "data directory": 1,
    "log": formats.LOG,
    "catalogue": formats.CATALOGUE,
    "deliveries": formats.DELIVERIES,
    "mailboxes": formats.MAILBOXES,
    "index": formats.INDEX,
    "checkpoint": formats.CHECKPOINT,
}
_THIS = f"tidings {__version__}"


def check_format(directory: Path) -> bool:
    """Whether a directory has the formats of this version; False where it is empty or not there. Raises otherwise."""
    path = directory / FORMAT_FILE
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        if there := _names(directory):
            raise FormatError(
                f"data directory: {directory} has files and no {FORMAT_FILE} ({', '.join(there[:3])}"
                f"{', …' if len(there) > 3 else ''}): it is of something else, or of an early version of Tidings; give "
                "an empty directory, or one that is not there yet: this one was left as it is"
            ) from None
        return False
    except (OSError, ValueError) as error:
        raise FormatError(
            f"data directory: cannot read {path}: {error}; restore it from a backup: nothing was changed"
        ) from error
    known = found if isinstance(found, dict) else {}
    other = [
        f"{what} {known.get(what)} and not {number}" for what, number in FORMATS.items() if known.get(what) != number
    ]
    if other:
        raise FormatError(
            f"data directory: {directory} is of another format than {_THIS} has ({', '.join(other)}); start it with "
            f"{known.get('made_by', 'the version that made it')}, or give another directory: this one was left as it is"
        )
    return True


def write_format(directory: Path) -> None:
    """Number a new directory, durably. Two that do so at the same time write the same."""
    beside = directory / f".{FORMAT_FILE}.{secrets.token_hex(4)}"
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"made_by": _THIS, **FORMATS}, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(directory / FORMAT_FILE)
    sync_directory(directory)


def _names(directory: Path) -> list[str]:
    """The files of a directory that somebody put there, and not its file system."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith(".") and name != "lost+found")
    except FileNotFoundError:
        return []
