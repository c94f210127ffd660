"""What can go wrong with a log, one class for each remedy."""

from __future__ import annotations

from tidings.errors import TidingsError


class LogError(TidingsError):
    """The base of every error of a log; raised itself if only the message says what to do."""


class LogBusyError(LogError):
    """Another process holds the log, or too much waits to be written. Nothing was appended; try again."""


class LogFullError(LogError):
    """The disk has no room. Nothing was appended; make room, then try again."""


class LogUnknownError(LogError):
    """It is not known whether it was appended: Kafka did not respond. Try again, with the same source and id."""


class LogConflictError(LogError):
    """The log has another event with this source and id. Nothing was appended."""

    def __init__(self, reason: str, *, row: int, position: int) -> None:
        super().__init__(reason)
        self.row = row
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return (_conflict, (str(self), self.row, self.position))


def _conflict(reason: str, row: int, position: int) -> LogConflictError:
    return LogConflictError(reason, row=row, position=position)


class LogRangeError(LogError):
    """Positions that the log does not have: removed by retention, or not written yet."""


class LogCorruptError(LogError):
    """What is on the disk is not what was written; `position` is the first event in doubt."""

    def __init__(self, reason: str, *, position: int) -> None:
        super().__init__(reason)
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return (_corrupt, (str(self), self.position))


def _corrupt(reason: str, position: int) -> LogCorruptError:
    return LogCorruptError(reason, position=position)
