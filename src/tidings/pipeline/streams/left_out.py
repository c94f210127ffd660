"""What a stream leaves out because it broke a batch: filters by their numbers, events by their positions.

It holds for every version of the subscriptions, so that a batch that is run again leaves out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Aside:
    """Left out of matching."""

    filters: frozenset[int] = frozenset()
    events: frozenset[int] = frozenset()

    def among(self, positions: Any) -> Any:
        """Which of an array of positions are of events that are left out, as an array of booleans."""
        return pc.is_in(positions, value_set=pa.array(sorted(self.events), pa.int64()))


NOTHING = Aside()
