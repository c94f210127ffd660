"""Keeps all files of a data directory readable by their owner alone: they hold events, tokens and webhook secrets.

Every process of the service, and Spark with its children, creates its files so (`be_private`); files that are open to
others are restricted when the service starts (`tighten`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidings.errors import TidingsError

UMASK = 0o077
RUNS = "runs"  # where the temporary files of drivers are


class PrivateFilesError(TidingsError):
    """Files that others can read, and that this user cannot change."""


def be_private() -> None:
    """Have this process, and those that it starts, create files that only their owner can read."""
    os.umask(UMASK)


def too_open(directory: Path) -> list[Path]:
    """Returns the files and folders of a directory, including itself, that others than their owner can use."""
    if os.name == "nt":
        return []
    found = [directory] if _is_open(directory) else []
    for folder, folders, files in os.walk(directory):
        found += [path for name in (*folders, *files) if _is_open(path := Path(folder, name))]
        if Path(folder) == directory / RUNS:
            folders.clear()  # only their owner can enter these, whatever modes Spark gives to files
    return found


def tighten(directory: Path) -> int:
    """Make all files of a directory readable by their owner alone; returns how many were not."""
    found = too_open(directory)
    for path in found:
        try:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~UMASK)
        except FileNotFoundError:
            continue  # removed meanwhile
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
        return False  # removed meanwhile, or a dangling link
