"""Strings of events as the numbers of texts that a `Fresh` was asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import Codes
from tidings.kernels.hashing import string_buffers
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.change import delta_kernels as kernels
from tidings.matching.engines.event_codes import Coder


class Texts(NamedTuple):
    """Texts by number, and a hash table of them, to which more are added at the end while these are read."""

    ends: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]
    known: int  # how many of them there are


@dataclass(frozen=True, slots=True)
class TextCoder(Coder):
    """Codes strings by their numbers, -1 for those that nobody asks for."""

    texts: Texts | None = None

    def codes(self, columns: Columns) -> tuple[Codes, Mask]:
        assert self.texts is not None
        column, texts = columns.batch.columns[self.path], self.texts
        codes = np.empty(len(column), np.int64)
        kernels.text_codes(
            *string_buffers(column), columns.hashes(self.path), texts.table, texts.ends, texts.data, texts.known, codes
        )
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.ones(len(column), bool)
        return codes, valid


def reading(coder: Coder, texts: Texts) -> Coder:
    """A coder that knows these texts, where it is one of strings."""
    return replace(coder, texts=texts) if isinstance(coder, TextCoder) else coder
