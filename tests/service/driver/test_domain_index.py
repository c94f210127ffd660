"""A domain's index holds what the catalogue says, whatever was changed, broken or restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.model.domain import Attribute, Domain
from tidings.pipeline.build.index_directory import IndexDirectory
from tidings.pipeline.sources.version_gate import read_covers
from tidings.pipeline.streams.index_changes import IndexChanges
from tidings.service.data.data_directory import DataDirectory, SetAside
from tidings.service.driver.domain_index import DomainIndex
from tidings.store.catalogue import Catalogue, NewSubscription
from tidings.store.formats import FormatError

DOMAIN = Domain("quotes", [Attribute("price", "double"), Attribute("symbol", "string")])


class World:
    def __init__(self, path: Path) -> None:
        self.data = DataDirectory(path)
        self.data.make()
        self.files = self.data.domain("ada", "quotes")
        self.catalogue = Catalogue(self.data.catalogue)
        self.define(DOMAIN)
        self.index = self.made()

    def define(self, domain: Domain) -> None:
        self.catalogue.put_domain("ada", "quotes", domain.to_json(), inferred=False)

    def made(self) -> DomainIndex:
        """An index as a driver that has just started has it."""
        return DomainIndex(self.files, self.catalogue, spark=None)  # type: ignore[arg-type]

    @property
    def row(self) -> Any:
        return self.catalogue.domain("ada", "quotes")

    def subscribe(self, filter: str, id: str, position: int = 0) -> int:
        made = self.catalogue.create(NewSubscription("ada", "quotes", filter, id=id))
        self.catalogue.activate(made.filters[-1].number, position)
        return made.filters[-1].number

    def change(self, id: str, filter: str, position: int) -> int:
        number = self.catalogue.change_filter("ada", id, filter).number
        self.catalogue.activate(number, position)
        return number

    def numbers(self) -> set[int]:
        return set(IndexChanges(self.files.index).ids().to_pylist())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    yield made
    made.catalogue.close()


def test_an_index_is_built_from_the_catalogue_and_follows_it(world: World) -> None:
    first = world.subscribe("price > 8", "dear")
    world.index.open(world.row, reached=0)
    assert world.numbers() == {first}
    second = world.subscribe("price < 2", "cheap")
    assert world.index.follow(world.row)
    assert world.numbers() == {first, second}
    assert read_covers(world.files.index).revision == world.row.revision
    assert not world.index.follow(world.row)


def test_a_row_enters_before_it_is_promised_and_its_promise_makes_no_version(world: World) -> None:
    world.index.open(world.row, reached=0)
    number = world.catalogue.create(NewSubscription("ada", "quotes", "price > 8")).filters[-1].number
    world.index.follow(world.row)
    assert world.numbers() == {number}
    version = world.index.version
    world.catalogue.activate(number, 17)
    world.index.follow(world.row)
    assert world.index.version == version
    assert read_covers(world.files.index).revision == world.row.revision


def test_a_changed_filter_leaves_when_the_stream_has_passed_its_end_and_not_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.service.driver.followed_filters.RETIRED_TOGETHER", 1)
    old = world.subscribe("price > 8", "dear")
    world.index.open(world.row, reached=0)
    new = world.change("dear", "price > 9", position=40)
    world.index.follow(world.row)
    assert world.numbers() == {old, new}
    assert world.index.retire(39) == []
    assert world.numbers() == {old, new}
    assert world.index.retire(40) == [old]
    assert world.numbers() == {new}
    assert world.index.numbers_of([world.index.known[new].subscription]).popitem()[1] == [old, new]


def test_what_was_over_before_the_start_does_not_enter(world: World) -> None:
    world.subscribe("price > 8", "dear")
    new = world.change("dear", "price > 9", position=40)
    gone = world.subscribe("price < 1", "gone")
    world.catalogue.delete("ada", "gone", 60)
    world.index.open(world.row, reached=50)
    assert world.numbers() == {new, gone}
    again = world.made()
    again.open(world.row, reached=60)
    assert world.numbers() == {new}


def test_a_poison_filter_is_left_out_with_its_reason_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = world.subscribe("prise > 8", "wrong")
    right = world.subscribe("price > 8", "right")
    world.index.open(world.row, reached=0)
    assert world.numbers() == {right}
    assert "unknown attribute 'prise'" in world.index.rejected[wrong]

    apply = IndexChanges.apply

    def exploding(self: IndexChanges, **given: Any) -> int:
        if "price = 13" in given["upsert"]["filter"].to_pylist():
            raise ZeroDivisionError("as a bug would")
        return apply(self, **given)

    monkeypatch.setattr(IndexChanges, "apply", exploding)
    numbers = [world.subscribe(f"price = {n}", f"s{n}") for n in range(20)]
    world.index.follow(world.row)
    assert world.numbers() == {right, *numbers} - {numbers[13]}
    assert "as a bug would" in world.index.rejected[numbers[13]]
    noted = SetAside.read(world.files.aside)  # from which the gateway has their subscriptions fail
    assert noted.filters.keys() == {wrong, numbers[13]}
    assert "unknown attribute 'prise'" in noted.filters[wrong].reason
    assert read_covers(world.files.index).revision == world.row.revision  # no subscriber waits for it


def test_opening_repairs_an_index_that_misses_rows_or_has_too_many(world: World) -> None:
    kept, lost = world.subscribe("price > 8", "kept"), world.subscribe("price > 9", "lost")
    world.index.open(world.row, reached=0)
    IndexChanges(world.files.index).apply(upsert=[(999, "TRUE")], remove=[lost])
    again = world.made()
    again.open(world.row, reached=0)
    assert world.numbers() == {kept, lost}


@pytest.mark.parametrize("damage", ["removed", "flipped"])
def test_a_lost_or_damaged_index_is_rebuilt_with_later_versions(world: World, damage: str) -> None:
    number = world.subscribe("price > 8", "dear")
    world.index.open(world.row, reached=0)
    version = world.index.version
    seen = world.files.query / "subscriptions" / f"{version}.json"  # what a query has of it
    seen.parent.mkdir(parents=True)
    seen.write_text("{}")
    if damage == "removed":
        shutil.rmtree(world.files.index)
    else:
        for path in world.files.index.glob("*/*.tidings"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = world.made()
    again.open(world.row, reached=0)
    assert world.numbers() == {number}
    assert again.version > version


def test_compiled_versions_do_not_pile_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.pipeline.streams.index_changes.FOLDED_AT", 2)
    world.index.open(world.row, reached=0)
    numbers = set()
    for n in range(8):
        numbers |= {world.subscribe(f"price > {n}", f"a{n}"), world.subscribe(f"price < {n}", f"b{n}")}
        world.index.follow(world.row)
    assert world.numbers() == numbers
    assert len(list(world.files.index.glob("*/replicated.json"))) <= 3
    again = world.made()
    again.open(world.row, reached=0)
    assert world.numbers() == numbers


def test_more_attributes_keep_the_index_and_other_changes_rebuild_it(world: World) -> None:
    number = world.subscribe("price > 8", "dear")
    world.index.open(world.row, reached=0)
    world.define(Domain("quotes", [*DOMAIN.attributes, Attribute("venue", "string")]))
    venue = world.subscribe("venue = 'XETRA'", "venue")
    again = world.made()
    again.open(world.row, reached=0)
    assert world.numbers() == {number, venue}
    assert not again.rejected

    world.define(Domain("quotes", [Attribute("price", "decimal(10,2)"), Attribute("symbol", "string")]))
    other = world.made()
    other.open(world.row, reached=0)
    assert world.numbers() == {number}
    assert "venue" in other.rejected[venue]
    manifest = IndexDirectory(world.files.index).manifest(other.version)
    assert Domain.from_json(manifest.domain).leaves[("price",)].name == "decimal"


def test_an_index_of_another_format_is_refused_and_not_rebuilt(world: World) -> None:
    world.subscribe("price > 8", "dear")
    world.index.open(world.row, reached=0)
    manifest = world.files.index / str(world.index.version) / "index.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    before = {path: path.read_bytes() for path in world.files.index.rglob("*") if path.is_file()}
    with pytest.raises(FormatError, match="has format 99, and this is Tidings with format 2"):
        world.made().open(world.row, reached=0)
    left = {path: path.read_bytes() for path in before if path.name != "covers"}  # which closes the gate
    assert left == {path: content for path, content in before.items() if path.name != "covers"}
    assert IndexDirectory(world.files.index).current() == int(manifest.parent.name)
