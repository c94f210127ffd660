"""What breaks a stream is set aside, with its reason and for good, and everything else goes on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tests.waiting import until

from tidings.pipeline.streams.failure_search import Suspect, culprits_of
from tidings.pipeline.streams.version_files import SharedMember
from tidings.service.data.data_directory import SetAside

from ..driver_world import World
from .test_driver_process import start_driver, with_group_killed

FAULTS = Path(__file__).parents[1] / "faults"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    yield made
    made.close()


def plant_poison(monkeypatch: pytest.MonkeyPatch, folder: Path, how: str) -> None:
    """Have matching break in processes that are started from now on."""
    monkeypatch.setenv("TIDINGS_POISON", how)
    monkeypatch.setenv("TIDINGS_FAULT_POINTS", str(folder))
    monkeypatch.setenv("TIDINGS_FAULT_HOOKS", str(FAULTS / "hooks" / "poison.py"))
    path = os.pathsep.join(filter(None, (str(FAULTS / "points"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture(params=["raise", "die"])
def poison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant_poison(monkeypatch, tmp_path, request.param)


def suspect(world: World, folder: Path, rows: dict[int, str]) -> Suspect:
    """The whole log as a batch against these filters, as a shared stream has them."""
    folder.mkdir()
    (folder / "member.json").write_text(SharedMember(world.domain, rows).to_text())
    (folder / "1.json").write_text('{"members": {"ada.quotes": "member.json"}}')
    return Suspect(str(folder), 1, world.domain.to_dict(), str(world.data.log), 0, world.log.end)


@pytest.mark.parametrize("poison", ["raise", pytest.param("die", marks=pytest.mark.long)], indirect=True)
@pytest.mark.usefixtures("poison")
def test_filters_and_events_that_break_a_batch_are_found(world: World, tmp_path: Path) -> None:
    world.publish(*range(10))
    (bad,) = world.publish(1.0, time="poison")
    world.publish(2.0)
    rows = {number: f"price > {number}" for number in range(20)} | {7: "time = 'poison'", 13: "source = 'poison'"}
    found = culprits_of(suspect(world, tmp_path / "versions", rows))
    assert found.filters.keys() == {7, 13}
    assert found.events.keys() == {bad}


@pytest.mark.usefixtures("poison")
def test_an_event_is_blamed_if_its_only_filter_matches_earlier_ones(world: World, tmp_path: Path) -> None:
    (good,) = world.publish(9.0)
    (bad,) = world.publish(1.0, time="poison")
    batch = dataclasses.replace(suspect(world, tmp_path / "versions", {1: "price > 5"}), start=good + 1)
    found = culprits_of(batch)
    assert (found.filters, found.events.keys()) == ({}, {bad})


def test_nothing_is_found_in_a_batch_that_does_not_fail(world: World, tmp_path: Path) -> None:
    world.publish(*range(10))
    assert not culprits_of(suspect(world, tmp_path / "versions", {1: "price > 5"}))


@pytest.mark.spark
@pytest.mark.parametrize("sharing", [0, 100], ids=["own stream", "shared stream"])
@pytest.mark.parametrize("how", ["raise", pytest.param("die", marks=pytest.mark.long)])
def test_a_stream_isolates_what_breaks_it_and_continues(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sharing: int, how: str
) -> None:
    plant_poison(monkeypatch, tmp_path, how)
    dear, bad = world.subscribe("price > 8", "dear"), world.subscribe("time = 'poison'", "bad")
    first = world.publish(9.0)
    process: Any = start_driver(world, "--share-up-to", str(sharing))
    try:
        until(lambda: world.told(dear) == first)
        aside = SetAside.read(world.files.aside)
        assert (aside.filters[bad].position, set(aside.events)) == (0, set())
        (odd,) = world.publish(10.0, time="poison")
        second = world.publish(11.0)
        until(lambda: world.told(dear) == first + second)
        assert set(SetAside.read(world.files.aside).events) == {odd}
    finally:
        with_group_killed(process)
