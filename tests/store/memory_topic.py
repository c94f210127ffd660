"""A topic in memory, which a test can have answer late, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidings.store.log.log_errors import LogBusyError, LogUnknownError


class MemoryTopic:
    """What a log sends to it outlives the log, as Kafka does."""

    name = "a topic in memory"
    max_record_bytes = 1 << 20

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.low = self.high = 0
        self.away = False
        self.keeps: int | None = None  # of the next append, so many records, and then no answer
        self.late: list[bytes] = []  # sent by an append that was not answered, and not arrived yet

    def bounds(self) -> tuple[int, int]:
        self._reached()
        return self.low, self.high

    def append(self, records: Sequence[bytes]) -> list[int]:
        self._reached()
        if self.keeps is not None:
            keeps, self.keeps = self.keeps, None
            self.late = list(records[keeps:])
            self.arrive(records[:keeps])
            raise LogUnknownError("no answer")
        return self.arrive(records)

    def arrive(self, records: Sequence[bytes]) -> list[int]:
        offsets = list(range(self.high, self.high + len(records)))
        self.records |= dict(zip(offsets, records, strict=True))
        self.high += len(records)
        return offsets

    def read(self, offsets: Iterable[int], *, max_bytes: int | None = None) -> dict[int, bytes]:
        self._reached()
        return {offset: self.records[offset] for offset in offsets if offset in self.records}

    def remove_before(self, offset: int) -> None:
        self._reached()
        self.low = max(self.low, offset)
        self.records = {at: record for at, record in self.records.items() if at >= offset}

    def close(self) -> None:
        pass

    def _reached(self) -> None:
        if self.away:
            raise LogBusyError("a topic in memory cannot be reached; try again")
