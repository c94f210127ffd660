"""A filter's error together with the text that it points into, so that the command can show the place."""

from __future__ import annotations

from tidings.errors import FilterError, TidingsError


class WrongFilterError(TidingsError):
    """`column` is the 1-based character of `text` that is wrong; None where all of it is."""

    def __init__(self, message: str, text: str, column: int | None) -> None:
        super().__init__(message)
        self.text = text
        self.column = column

    @classmethod
    def of(cls, error: FilterError, text: str) -> WrongFilterError:
        return cls(str(error), text, error.column)
