"""Mailboxes stay small: what was acknowledged goes, and what overflowed and is known elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("apsw", reason="pip install 'tidings[store]'")

import pyarrow as pa

from tidings.service.driver.followed_filters import KnownFilter
from tidings.service.driver.mailbox_upkeep import MailboxUpkeep
from tidings.store.mailboxes.notifications import LOG, Notifications

SUBSCRIPTION, FILTER = 3, 7  # a key, and the number of its filter


@pytest.fixture
def upkeep(tmp_path: Path) -> MailboxUpkeep:
    path = tmp_path / "mailboxes.sqlite"
    with Notifications(path, max_waiting=2) as store:
        matches = pa.table({"position": [*range(5)], "subscriptions": [[FILTER]] * 5})
        store.load([matches], query="q", batch=0, version=0, reached={LOG: 4})
    filters = SimpleNamespace(
        known={FILTER: KnownFilter(SUBSCRIPTION, None)},
        files=SimpleNamespace(mailboxes=path),
        numbers_of=lambda keys: {SUBSCRIPTION: [FILTER]} if SUBSCRIPTION in keys else {},
    )
    return MailboxUpkeep(cast(Any, filters), cast(Any, None), lambda: Notifications(path, max_waiting=2))


def kept(upkeep: MailboxUpkeep) -> tuple[list[int], list[int]]:
    with upkeep.opened() as store:
        return store.positions_of(FILTER), [one.position for one in store.overflowed(FILTER)]


def test_what_overflowed_goes_when_it_is_a_dead_letter_and_the_log_has_removed_it(upkeep: MailboxUpkeep) -> None:
    assert kept(upkeep) == ([0, 1], [2, 3, 4])
    upkeep.prune({SUBSCRIPTION: 0}, log_start=4)
    assert kept(upkeep) == ([1], [2, 3, 4])  # nobody knows of these yet
    upkeep.prune({-FILTER: 2}, log_start=2)
    assert kept(upkeep) == ([1], [2, 3, 4])  # the log has them all
    upkeep.prune({-FILTER: 2}, log_start=4)
    assert kept(upkeep) == ([1], [3, 4])
    upkeep.prune({-FILTER: 4, -9: 4}, log_start=4)
    assert kept(upkeep) == ([1], [4])
