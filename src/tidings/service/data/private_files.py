"""All files of a data directory are its owner's alone: events, tokens and secrets of webhooks are in them.

Every process of the service makes its files so (`be_private`), Spark and what it starts among them; what was made
otherwise is tightened when the service starts (`tighten`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidings.errors import TidingsError

UMASK = 0o077
RUNS = "runs"  # where the temporary files of drivers are


class PrivateFilesError(TidingsError):
    """Files that others can read, and that this user cannot keep them from."""


def be_private() -> None:
    """Have this process, and those that it starts, make files that their owner alone can read."""
    os.umask(UMASK)


def too_open(directory: Path) -> list[Path]:
    """The files and folders of a directory, itself among them, that others than their owner can use."""
    if os.name == "nt":
        return []
    found = [directory] if _is_open(directory) else []
    for folder, folders, files in os.walk(directory):
        found += [path for name in (*folders, *files) if _is_open(path := Path(folder, name))]
        if Path(folder) == directory / RUNS:
            folders.clear()  # nobody else can enter these, whatever modes Spark gives to files that it ships
    return found


def tighten(directory: Path) -> int:
    """Have all files of a directory be their owner's alone; returns how many were not."""
    found = too_open(directory)
    for path in found:
        try:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~UMASK)
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError as error:
            raise PrivateFilesError(
                f"data directory: others can read {path}, and it cannot be changed ({error.strerror}): it belongs to "
                f"user {path.stat().st_uid}; serve as that user, or give it to this one with chown -R"
            ) from error
    return len(found)


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & UMASK)
    except OSError:
        return False  # gone meanwhile, or a link to nothing
