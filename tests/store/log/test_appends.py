"""An event with the source and id of an earlier one is not appended again."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.log.log_errors import LogConflictError
from tidings.store.log.log_writer import Log

from ..log_events import cloud


class TestDuplicates:
    def test_a_duplicate_returns_the_position_of_the_first_event(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1"), cloud("/a", "2"), cloud("/b", "1")], domain="d") == [0, 1, 2]
            assert log.append([cloud("/a", "2"), cloud("/a", "3"), cloud("/b", "1"), {"n": 1}], domain="d") == [
                1,
                3,
                2,
                4,
            ]
            assert log.append([cloud("/a", "3")], domain="d") == [3]
            assert log.end == 5

    def test_it_does_so_within_one_append_and_after_the_log_was_opened_again(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1"), cloud("/a", "1"), cloud("/a", "2")], domain="d") == [0, 0, 1]
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "2"), cloud("/a", "9")], domain="d") == [1, 2]

    def test_the_order_of_keys_is_no_difference(self, tmp_path: Path) -> None:
        event = cloud("/a", "1", {"x": 1, "y": Decimal("8.40")})
        turned = dict(reversed(event.items())) | {"data": {"y": Decimal("8.4"), "x": 1}}
        with Log(tmp_path / "log") as log:
            assert log.append([event], domain="d") == log.append([turned], domain="d") == [0]

    @pytest.mark.parametrize("data", [{"x": 2}, {"x": True}, {"x": "1"}, {}])
    def test_a_conflicting_event_is_refused_with_its_whole_append(self, tmp_path: Path, data: dict[str, Any]) -> None:
        with Log(tmp_path / "log") as log:
            log.append([cloud("/a", "0"), cloud("/a", "1", {"x": 1})], domain="d")
            with pytest.raises(LogConflictError, match=r"row 1.*'/a'.*'1'.*position 1") as refused:
                log.append([cloud("/a", "2"), cloud("/a", "1", data)], domain="d")
            assert (refused.value.row, refused.value.position) == (1, 1)
            assert log.append([cloud("/a", "2")], domain="d") == [2]

    def test_names_that_concatenate_alike_are_apart(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("ab", "c"), cloud("a", "bc")], domain="d") == [0, 1]

    def test_the_same_source_and_id_in_two_domains_are_two_events(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1", {"x": 1})], domain="d") == [0]
            assert log.append([cloud("/a", "1", {"x": 2})], domain="e") == [1]
            futures = [log.submit([cloud("/a", "2", {"x": k})], domain=domain) for k, domain in enumerate("ded")]
            assert [future.exception() is None for future in futures] == [True, True, False]
            assert log.append([cloud("/a", "1", {"x": 2})], domain="e") == [1]

    def test_two_names_of_one_hash_are_two_events(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import numpy as np

        monkeypatch.setattr(
            "tidings.store.log.appends.keys_of", lambda domain, names: np.full(len(names), 7, np.uint64)
        )
        with Log(tmp_path / "log") as log:
            assert log.append([cloud("/a", "1")], domain="d") == [0]
            assert log.append([cloud("/a", "2")], domain="d") == [1]
            assert log.append([cloud("/a", "1"), cloud("/a", "2"), cloud("/a", "3")], domain="d") == [0, 1, 2]

    def test_names_are_forgotten_only_beyond_the_number_that_is_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidings.store.log.appends._RUN", 10)
        with Log(tmp_path / "log", remember=30) as log:
            for k in range(100):
                log.append([cloud("/a", str(k))], domain="d")
            assert log.append([cloud("/a", str(k)) for k in range(70, 100)], domain="d") == list(range(70, 100))
            assert log.append([cloud("/a", "0")], domain="d") == [100]

    def test_a_domain_with_an_attribute_specversion_has_plain_events(self, tmp_path: Path) -> None:
        domain = Domain("d", [Attribute("specversion", "string"), Attribute("id", "string")])
        batch = read_events([{"specversion": "1.0", "source": "/a", "id": "1"}] * 2, domain)
        with Log(tmp_path / "log") as log:
            assert log.append(batch) == [0, 1]
