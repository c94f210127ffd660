"""Small domains share a stream: each gets its own matches, whatever comes, goes, grows or is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.power_cuts import hit, hits

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.service.data.data_directory import DataDirectory
from tidings.store.catalogue import Catalogue, NewSubscription
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import Notifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tests.waiting import until

from tidings.service.driver import stream_assignment as driver_streams
from tidings.service.driver.stream_assignment import Sharing, Streams
from tidings.service.driver.stream_thread import DriverContext

pytestmark = pytest.mark.spark

QUOTES = Domain("quotes", [Attribute("price", "double"), Attribute("position", "string")])
NOTES = Domain("notes", [Attribute("text", "string")])
SMALL = Sharing(subscriptions=3, quiet_seconds=0.0, busy_share=1e9)  # however busy the machine is


class World:
    """Many domains, and no gateway: the test plays its part."""

    def __init__(self, path: Path) -> None:
        self.data = DataDirectory(path)
        self.data.make()
        self.log = Log(self.data.log)
        self.catalogue = Catalogue(self.data.catalogue)
        self.domains: dict[str, Domain] = {}

    def close(self) -> None:
        self.log.close()
        self.catalogue.close()

    def define(self, name: str, domain: Domain) -> None:
        self.domains[name] = Domain(f"ada.{name}", domain.attributes)
        self.catalogue.put_domain("ada", name, domain.to_json(), inferred=False)

    def subscribe(self, name: str, filter: str, id: str) -> int:
        made = self.catalogue.create(NewSubscription("ada", name, filter, id=id))
        self.catalogue.activate(made.filters[-1].number, self.log.end)
        return made.filters[-1].number

    def publish(self, name: str, *events: dict[str, Any]) -> list[int]:
        return self.log.append(read_events(list(events), self.domains[name]))

    def told(self, name: str, number: int) -> list[int]:
        path = self.data.domain("ada", name).mailboxes
        if not path.exists():
            return []
        with Notifications(path) as mailboxes:
            return mailboxes.positions_of(number)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    yield made
    made.close()


class Running:
    """What a driver does to its streams, step by step."""

    def __init__(self, spark: SparkSession, world: World, sharing: Sharing) -> None:
        context = DriverContext(spark, world.data, world.catalogue, str(world.data.catalogue))
        self._world = world
        self.streams = Streams(context, sharing)

    def look(self) -> None:
        catalogue = self._world.catalogue
        revision = catalogue.revision()
        self.streams.follow({row.key: row for row in catalogue.domains()}, revision)
        self.streams.look()

    def until(self, holds: Any) -> None:
        def looked() -> bool:
            self.look()
            return bool(holds())

        until(looked)

    def is_shared(self, name: str) -> bool:
        return bool(self.streams.status().get(f"ada.{name}", {}).get("shared"))


@contextmanager
def running(spark: SparkSession, world: World, sharing: Sharing = SMALL) -> Iterator[Running]:
    made = Running(spark, world, sharing)
    try:
        made.look()
        yield made
    finally:
        made.streams.stop()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_streams, "LOOK_SECONDS", 0.0)


def test_domains_that_share_a_stream_get_their_own_matches_over_restarts(spark: SparkSession, world: World) -> None:
    world.define("quotes", QUOTES)
    world.define("notes", NOTES)
    dear = world.subscribe("quotes", "price > 8 AND position = 'left'", "dear")
    oil = world.subscribe("notes", "text LIKE '%oil%'", "oil")
    with running(spark, world) as driver:  # nothing comes: the next start goes on all the same
        driver.until(lambda: driver.streams.status()["ada.quotes"]["state"] == "running")
    with running(spark, world) as driver:
        first = world.publish("quotes", {"price": 9.0, "position": "left"}, {"price": 7.0, "position": "left"})
        second = world.publish("notes", {"text": "an oil spill"}, {"text": "rain"})
        driver.until(lambda: (world.told("quotes", dear), world.told("notes", oil)) == (first[:1], second[:1]))

        world.define("late", NOTES)  # a domain that comes later, and one that changes
        rain = world.subscribe("late", "text = 'rain'", "rain")
        world.define("quotes", Domain("quotes", [*QUOTES.attributes, Attribute("volume", "bigint")]))
        large = world.subscribe("quotes", "volume > 5", "large")
        third = world.publish("late", {"text": "rain"})
        fourth = world.publish("quotes", {"price": 1.0, "volume": 6})
        driver.until(lambda: (world.told("late", rain), world.told("quotes", large)) == (third, fourth))

        world.catalogue.delete("ada", "oil", world.log.end)
        world.publish("notes", {"text": "oil"})
        fifth = world.publish("late", {"text": "rain"})
        driver.until(lambda: world.told("late", rain) == third + fifth)
        assert driver.streams.shared_status()["domains"] == 3  # type: ignore[index]
        assert not world.data.domain("ada", "quotes").query.exists()
        assert world.catalogue.delete_domain("ada", "notes")
        driver.until(lambda: not world.data.domain("ada", "notes").folder.exists())
    shutil.rmtree(world.data.shared.query)  # a lost checkpoint is made again, and nothing is lost or doubled
    sixth = world.publish("quotes", {"price": 10.0, "position": "left"})
    with running(spark, world) as driver:
        driver.until(lambda: world.told("quotes", dear) == first[:1] + sixth)
        assert world.told("late", rain) == third + fifth


def test_a_domain_that_grows_gets_its_own_stream_and_returns_when_it_is_small_again(
    spark: SparkSession, world: World
) -> None:
    world.define("quotes", QUOTES)
    world.define("notes", NOTES)
    dear = world.subscribe("quotes", "price > 8", "dear")
    oil = world.subscribe("notes", "text = 'oil'", "oil")
    told: list[int] = []

    def publish(driver: Running) -> None:
        told.extend(world.publish("quotes", {"price": 9.0}))
        world.publish("notes", {"text": "rain"})
        driver.look()

    with running(spark, world) as driver:
        publish(driver)
        driver.until(lambda: world.told("quotes", dear) == told)
        assert driver.is_shared("quotes")
        for number in range(5):
            world.subscribe("quotes", f"price > {number}", f"more-{number}")
            publish(driver)
        driver.until(lambda: not driver.is_shared("quotes"))
        publish(driver)
        driver.until(lambda: world.told("quotes", dear) == told)
        assert driver.is_shared("notes")
        for number in range(5):
            world.catalogue.delete("ada", f"more-{number}", world.log.end)
            publish(driver)

        def returned() -> bool:
            told.extend(world.publish("quotes", {"price": 9.0}))
            return driver.is_shared("quotes")

        driver.until(returned)
        assert not world.data.domain("ada", "quotes").query.exists()
        told.extend(world.publish("quotes", {"price": 9.0}))
        oil_ = world.publish("notes", {"text": "oil"})
        driver.until(lambda: (world.told("quotes", dear), world.told("notes", oil)) == (told, oil_))


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.long)])
def test_a_power_cut_over_the_shared_checkpoint_loses_and_repeats_nothing(
    spark: SparkSession, world: World, count: int
) -> None:
    world.define("quotes", QUOTES)
    world.define("notes", NOTES)
    dear, oil = world.subscribe("quotes", "price > 8", "dear"), world.subscribe("notes", "text = 'oil'", "oil")
    told: dict[str, list[int]] = {"quotes": [], "notes": []}

    def publish() -> None:
        told["quotes"] += world.publish("quotes", {"price": 9.0})
        world.publish("quotes", {"price": 7.0})
        told["notes"] += world.publish("notes", {"text": "oil"})

    def all_told() -> bool:
        return (world.told("quotes", dear), world.told("notes", oil)) == (told["quotes"], told["notes"])

    query = world.data.shared.query
    random = Random(17)
    for _ in range(count + 1):
        with running(spark, world) as driver:
            for _ in range(2):
                publish()
                driver.until(all_told)
        last = max(int(path.name) for path in (query / "offsets").iterdir() if path.name.isdecimal())
        for name, state in random.choice([one for one in hits(last, 3) if one]).items():
            hit(query / name, state)
    publish()
    with running(spark, world) as driver:
        driver.until(all_told)
