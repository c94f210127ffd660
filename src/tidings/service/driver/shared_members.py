"""The filter rows of a small domain, held in memory for the versions of a shared stream."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.pipeline.streams.version_files import Member
from tidings.service.data.data_directory import DomainFiles
from tidings.service.driver.followed_filters import FollowedFilters
from tidings.store.catalogue import Catalogue, FilterRow


class MemberFilters(FollowedFilters):
    """Holds the rows of a domain; `take_changed` tells when the shared stream needs another version for it."""

    def __init__(self, files: DomainFiles, catalogue: Catalogue) -> None:
        super().__init__(files, catalogue)
        self._rows: dict[int, str] = {}
        self._changes = 0
        self._is_changed = True

    @property
    def version(self) -> int:
        return self._changes

    def member(self) -> Member:
        assert self.domain is not None
        return Member(self.domain, self._rows)

    def take_changed(self) -> bool:
        """Whether rows have changed since the last call."""
        changed, self._is_changed = self._is_changed, False
        return changed

    def _begin(self) -> None:
        self._rows = {}
        self._is_changed = True

    def _there(self) -> set[int]:
        return set()

    def _numbers(self) -> set[int]:
        return set(self._rows)

    def _start_over(self, rows: Sequence[FilterRow]) -> None:
        """Nothing is held yet."""

    def _apply(self, rows: Sequence[FilterRow], remove: set[int]) -> None:
        self._rows |= {row.number: row.filter for row in rows}
        for number in remove:
            del self._rows[number]
        self._changes += 1
        self._is_changed = True

    def _covered(self, revision: int) -> None:
        self.covers = revision
