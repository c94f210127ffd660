"""A file of another version of Tidings is refused by name, and not one byte of it is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tidings.store.formats import FormatError
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.deliveries import Deliveries
from tidings.store.mailboxes.notifications import Notifications


def filled_log(folder: Path) -> Path:
    with Log(folder) as log:
        log.append([{"n": 1}], domain="d")
    return folder / "events.sqlite"


def filled_deliveries(folder: Path) -> Path:
    with Deliveries(folder / "deliveries.sqlite") as deliveries:
        deliveries.acknowledge(1, 5)
    return folder / "deliveries.sqlite"


def filled_mailboxes(folder: Path) -> Path:
    with Notifications(folder / "mailboxes.sqlite", max_waiting=5) as mailboxes:
        mailboxes.prune({1: 5})
    return folder / "mailboxes.sqlite"


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "log, written": (filled_log, lambda path: Log(path.parent)),
    "log, read": (filled_log, lambda path: LogReader(path.parent)),
    "deliveries": (filled_deliveries, Deliveries),
    "mailboxes": (filled_mailboxes, lambda path: Notifications(path, max_waiting=7)),
}


@pytest.mark.parametrize("number", [0, 99])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_format_is_refused_by_name_and_left_as_it_is(tmp_path: Path, kind: str, number: int) -> None:
    make, open_ = KINDS[kind]
    path = make(tmp_path)
    other = apsw.Connection(str(path))
    other.execute(f"PRAGMA user_version = {number}")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FormatError, match=rf"{path.name} has format {number}, and this is Tidings with format \d; use"):
        open_(path)
    assert path.read_bytes() == before
    assert not path.with_name(f"{path.name}-wal").exists()


def test_another_format_that_is_still_in_the_write_ahead_log_is_refused_too(tmp_path: Path) -> None:
    path = filled_deliveries(tmp_path)
    other = apsw.Connection(str(path))
    other.execute("PRAGMA user_version = 99")
    with pytest.raises(FormatError, match="has format 99"):
        Deliveries(path)
    other.close()
