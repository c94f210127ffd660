"""The result of a match: for each event the subscriptions that it satisfies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.model.arrow import ArrowArray
from tidings.model.event import Reject


@dataclass(frozen=True)
class Matches:
    """The matches of a batch: those of event i are `slots[offsets[i]:offsets[i + 1]]`, in no order.

    A slot is the number of a subscription in the table that was matched against, whose ids are
    `subscription_ids`: matches stay true to it, whatever happens to the matcher later.
    """

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    id_columns: tuple[ArrowArray, ...]  # whose ids, one column after the other, the slots number
    rejects: list[Reject]  # events that were left out, where the caller asked for that

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def subscription_ids(self) -> ArrowArray:
        """The ids by slot."""
        filled = [column for column in self.id_columns if len(column)] or list(self.id_columns[:1])
        return filled[0] if len(filled) == 1 else pa.concat_arrays(filled)

    @cached_property
    def events(self) -> npt.NDArray[np.int64]:
        """The event of each match."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @cached_property
    def ids(self) -> ArrowArray:
        """The subscription id of each match."""
        return self.subscription_ids.take(pa.array(self.slots))

    def pairs(self) -> list[tuple[int, str | int]]:
        """Every match as (event, subscription id), by event and then in the order of the subscriptions."""
        order = np.lexsort((self.slots, self.events))
        ids: list[str | int] = self.subscription_ids.take(pa.array(self.slots[order])).to_pylist()
        return list(zip(self.events[order].tolist(), ids, strict=True))

    def of(self, event: int) -> list[str | int]:
        """The ids of the subscriptions that one event matches, in the order of the subscriptions."""
        slots = np.sort(self.slots[self.offsets[event] : self.offsets[event + 1]])
        ids: list[str | int] = self.subscription_ids.take(pa.array(slots)).to_pylist()
        return ids

    def to_arrow(self) -> pa.Table:
        """A table with a row for each match: event, subscription."""
        return pa.table({"event": pa.array(self.events), "subscription": self.ids})

    def __repr__(self) -> str:
        return f"<Matches: {len(self):,} of {len(self.offsets) - 1:,} events>"
