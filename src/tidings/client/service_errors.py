"""What the service refuses, and that it did not answer."""

from __future__ import annotations

import json
from typing import Any

from tidings.errors import TidingsError

_HINTS = {
    401: "give a token: token=…, TIDINGS_TOKEN, or the file `token` of the service's data directory",
    421: "the service takes requests for the hosts that it was started with; see `tidings serve --help`",
}


class ServiceError(TidingsError):
    """The service answered that it will not do this.

    `status` is HTTP's, the others are those of `application/problem+json`; `pointer` is the place in what was
    sent (a JSON pointer), where one is to blame. `published` has the positions of the events that were taken
    before the one that was refused, where many were published.
    """

    def __init__(
        self, status: int, title: str, detail: str = "", *, pointer: str | None = None, type: str = "about:blank",
        retry_after: float | None = None, problem: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.status = status
        self.title = title
        self.detail = detail
        self.pointer = pointer
        self.type = type
        self.retry_after = retry_after
        self.problem = problem or {}
        self.published: list[int] = []
        place = f" (at {pointer})" if pointer else ""
        hint = f"; {_HINTS[status]}" if status in _HINTS else ""
        super().__init__(f"{status} {title}{f': {detail}' if detail else ''}{place}{hint}")

    @property
    def column(self) -> int | None:
        """Where a filter's text is wrong, counted from 1; None where something else is."""
        column = self.problem.get("column")
        return column if isinstance(column, int) else None


class UnreachableError(TidingsError):
    """No answer came. `sent` says whether the request may have arrived, so that it may have been done."""

    def __init__(self, url: str, reason: str, *, sent: bool) -> None:
        self.url = url
        self.reason = reason
        self.sent = sent
        self.published: list[int] = []
        done = "; the request may have been carried out" if sent else "; is `tidings serve` running there?"
        super().__init__(f"no answer from {url}: {reason}{done}")


def problem_of(status: int, headers: dict[str, str], body: bytes) -> ServiceError:
    """The error of an answer, whether the service or something in between wrote it."""
    problem: dict[str, Any] = {}
    if "json" in headers.get("content-type", ""):
        try:
            read = json.loads(body)
        except ValueError:
            read = None
        problem = read if isinstance(read, dict) else {}
    title = problem.get("title")
    detail = problem.get("detail")
    if not isinstance(detail, str):
        detail = "" if title else " ".join(body[:300].decode("utf-8", "replace").split())
    pointer = problem.get("pointer")
    return ServiceError(
        status,
        title if isinstance(title, str) else "the service refuses",
        detail,
        pointer=pointer if isinstance(pointer, str) else None,
        type=str(problem.get("type", "about:blank")),
        retry_after=seconds_of(headers.get("retry-after")),
        problem=problem,
    )


def seconds_of(retry_after: str | None) -> float | None:
    """The header Retry-After where it counts seconds; its other form, a date, needs a clock that both share."""
    try:
        return None if retry_after is None else max(0.0, float(retry_after))
    except ValueError:
        return None
