"""Spark's Python workers collect garbage after every task, among all that they have ever imported.

That takes a tenth of a second with numba, Arrow and Spark in a process: more than a small task itself. What
is there when a process has done its first task of a kind is there to stay, and is left out of later collections.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_what_is_there(kind: str) -> None:
    """To be called when a task of a kind is done; the first time counts."""
    gc.collect()
    gc.freeze()
