"""Groups of similar subscriptions for a store of notifications, which then writes pages for them."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from tidings.matching.alike import GROUP, groups_of
from tidings.model.domain import Domain
from tidings.pipeline.whole_table import read_whole
from tidings.store.notifications import Notifications


def group_mailboxes(
    subscriptions: DataFrame, domain: Domain, store: str | os.PathLike[str], *, size: int = GROUP
) -> int:
    """Have all subscriptions of a table in groups of those that are alike; answers how many groups there are."""
    table = read_whole(subscriptions, domain)
    groups = groups_of(table.filters, size)
    with Notifications(store) as opened:
        return opened.group(table.ids.take(pa.array(group.astype(np.int64))).to_pylist() for group in groups)
