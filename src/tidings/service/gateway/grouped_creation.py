"""Subscriptions that are asked for at the same time are written together: two syncs for all, rather than for each.

    ask ─┐
    ask ─┼─► written down, all ─► the end of the log is read ─► activated, all ─► answered, each
    ask ─┘

Whoever comes meanwhile is of the next group. Where a group is refused, as for an id that is taken, each of it is tried
alone, so that nobody pays for another's mistake.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TypeAlias

from tidings.errors import TidingsError
from tidings.store.catalogue import Catalogue, FilterRow, NewSubscription, SubscriptionRow
from tidings.store.log.log_reader import LogReader

MOST = 500  # of one group
_Asked: TypeAlias = "tuple[NewSubscription, asyncio.Future[SubscriptionRow]]"


class Creating:
    """Makes subscriptions that are active when they are answered. For the loop; the stores are asked in threads."""

    def __init__(self, catalogue: Catalogue, log: LogReader, executor: Executor) -> None:
        self._catalogue = catalogue
        self._log = log
        self._executor = executor
        self._asked: deque[_Asked] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def create(self, new: NewSubscription) -> SubscriptionRow:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[SubscriptionRow] = loop.create_future()
        self._asked.append((new, answer))
        if self._writing is None:
            self._writing = loop.create_task(self._write(), name="creating subscriptions")
        return await answer

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        group: list[_Asked] = []
        try:
            while self._asked:
                group = [self._asked.popleft() for _ in range(min(MOST, len(self._asked)))]
                made = await loop.run_in_executor(self._executor, self._made, [new for new, _ in group])
                for (_, answer), outcome in zip(group, made, strict=True):
                    if answer.done():
                        continue  # who asked has gone
                    if isinstance(outcome, SubscriptionRow):
                        answer.set_result(outcome)
                    else:
                        answer.set_exception(outcome)
        finally:
            self._writing = None
            for _, answer in [*group, *self._asked]:  # of a gateway that stops: nobody waits for ever
                answer.cancel()
            self._asked.clear()

    def _made(self, wanted: Sequence[NewSubscription]) -> Sequence[SubscriptionRow | Exception]:
        if len(wanted) > 1:
            try:
                return self.create_now(wanted)
            except TidingsError:
                pass  # one of them cannot be: which, is seen one by one
        outcomes: list[SubscriptionRow | Exception] = []
        for new in wanted:
            try:
                outcomes += self.create_now([new])
            except Exception as error:  # whatever it is, it is the answer of who asked
                outcomes.append(error)
        return outcomes

    def create_now(self, wanted: Sequence[NewSubscription]) -> list[SubscriptionRow]:
        """Make subscriptions, all or none, in this thread."""
        made = self._catalogue.create_many(wanted)
        # The end of the log is read after they were written down: see `subscribing`.
        active = self._catalogue.activate_many([row.filters[-1].number for row in made], self._log.end)
        rows = {row.number: row for row in active}
        return [_begun(row, rows[row.filters[-1].number]) for row in made]


def _begun(row: SubscriptionRow, filter: FilterRow) -> SubscriptionRow:
    """A subscription as the catalogue has it once its first filter is activated."""
    assert filter.valid_from is not None
    replaying = filter.replay_from is not None and filter.replay_from < filter.valid_from
    return dataclasses.replace(row, pending=False, replaying=replaying, filters=[filter])
