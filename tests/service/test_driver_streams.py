"""Which stream a domain belongs to is on the disk before either stream acts on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.service import driver_streams
from tidings.service.data_directory import DataDirectory
from tidings.service.driver_streams import Sharing, Streams
from tidings.store.catalogue import DomainRow

ROW = DomainRow("ada", "quotes", "{}", False, 0, 0, 1)


class Own:
    """A stream of its own that never comes to make its checkpoint."""

    def __init__(self, context: Any, row: DomainRow, *, begin: int) -> None:
        self.key = row.key

    def start(self) -> None:
        pass


class Shared:
    """The shared stream, which notes who had a checkpoint when it was told."""

    reached = 7

    def __init__(self, context: Any) -> None:
        self._data = context.data
        self.told: list[dict[str, bool]] = []
        self.size = 1

    def tell(self, rows: Mapping[str, DomainRow], revision: int) -> None:
        self.told.append({key: key in rows for key in (ROW.key,)})
        if ROW.key not in rows:
            assert self._data.domain("ada", "quotes").query.is_dir(), "a crash here would lose what comes"

    def start(self) -> None:
        pass

    def has(self, key: str) -> bool:
        return True

    def subscriptions(self, key: str) -> int:
        return self.size

    def events_per_second(self, key: str) -> float:
        return 0.0

    def status(self) -> dict[str, Any]:
        return {"state": "running"}


def test_a_domain_that_leaves_has_a_checkpoint_before_the_shared_stream_is_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(tmp_path / "data")
    data.make()
    monkeypatch.setattr(driver_streams, "DomainStream", Own)
    monkeypatch.setattr(driver_streams, "SharedStream", Shared)
    context: Any = SimpleNamespace(data=data, catalogue=SimpleNamespace(filter_counts=dict))
    streams = Streams(context, Sharing())
    streams.follow({ROW.key: ROW}, 1)
    shared: Any = streams._shared
    assert shared.told == [{ROW.key: True}]
    assert not data.domain("ada", "quotes").query.exists()
    shared.size = 10**6
    streams.look()
    assert shared.told[-1] == {ROW.key: False}
