"""A domain's View and the groups of its mailboxes adapt to its events, and change no delivery."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidings.store.mailboxes.deliveries import Deliveries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tests.waiting import until

from tidings.service.driver import domain_adaptation as driver_adapting
from tidings.service.driver.domain_adaptation import Adapting
from tidings.store.mailboxes.notifications import Notifications

from ..driver_world import World, reached, streaming

pytestmark = pytest.mark.spark


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def adapting(spark: SparkSession, world: World) -> Iterator[Adapting]:
    made = Adapting(spark, world.data.log, every_seconds=0.2, placement="bluedove")
    yield made
    made.stop()


@pytest.mark.long
def test_views_change_while_events_arrive_and_every_match_is_delivered_once(
    spark: SparkSession, world: World, adapting: Adapting
) -> None:
    numbers = {price: world.subscribe(f"price > {price}", f"above {price}") for price in range(20)}
    prices: list[float] = []

    def publish(count: int) -> None:
        more = [float((len(prices) + n) * 7 % 23) for n in range(count)]
        world.publish(*more)
        prices.extend(more)

    def publishing_until(holds: Callable[[], bool]) -> None:
        def published() -> bool:
            publish(3)
            until(lambda: reached(stream, world))
            return holds()

        until(published)

    def told() -> bool:
        return all(
            world.told(number) == [at for at, price in enumerate(prices) if price > least]
            for least, number in numbers.items()
        )

    with streaming(spark, world, adapting=adapting) as stream:
        publish(30)
        publishing_until(lambda: stream.status()["view_epoch"] != 0)
        numbers |= {30: world.subscribe("price > 30", "dear")}
        publish(30)
        stream.tell(world.row)
        until(told)
        first = stream.status()
        assert first["view"] == "bluedove"
        assert first["view_partitions"] > 1
        assert first["events"] == len(prices)  # not the visits
    again = Adapting(spark, world.data.log, every_seconds=0.2, placement="digests")
    with streaming(spark, world, adapting=again) as stream:  # what is in force stays so until another is
        until(lambda: stream.status()["state"] == "running")
        assert stream.status()["view_epoch"] == first["view_epoch"]
        publish(20)
        publishing_until(lambda: stream.status()["view"] == "digests")
        assert stream.status()["view_epoch"] > first["view_epoch"]
        publish(20)
        until(told)
        layouts = list(world.files.index.glob("*/placed-*.json"))
        assert len(layouts) == 1  # that of the old View is gone
    again.stop()
    publish(20)
    with streaming(spark, world) as stream:  # without adapting: every worker has all subscriptions
        until(told)


@pytest.mark.parametrize("placement", ["opchord", pytest.param("chord", marks=pytest.mark.long)])
def test_a_domain_has_the_placement_that_it_names_and_another_when_it_names_that(
    spark: SparkSession, world: World, placement: str
) -> None:
    """Placements whose lists are counted, in a service that adapts nothing by itself."""
    adapting = Adapting(spark, world.data.log, every_seconds=math.inf)
    numbers = {price: world.subscribe(f"price > {price}", f"above {price}") for price in range(20)}
    numbers[99] = world.subscribe("source = 's' AND price BETWEEN 3 AND 9", "between")
    prices: list[float] = []

    def publish(count: int) -> None:
        more = [float((len(prices) + n) * 7 % 23) for n in range(count)]
        world.publish(*more)
        prices.extend(more)

    def told() -> bool:
        wanted = {least: [at for at, price in enumerate(prices) if price > least] for least in range(20)}
        wanted[99] = [at for at, price in enumerate(prices) if 3 <= price <= 9]
        return all(world.told(number) == wanted[least] for least, number in numbers.items())

    def has_view(name: str) -> bool:
        publish(3)
        until(lambda: reached(stream, world))
        return bool(stream.status()["view"] == name)

    with streaming(spark, world, adapting=adapting) as stream:
        publish(30)
        until(told)
        assert stream.status()["view"] == "replicated"
        world.name_placement(placement)
        stream.tell(world.row)
        until(lambda: has_view(placement))
        del numbers[7]
        world.catalogue.delete("ada", "above 7", world.log.end)
        stream.tell(world.row)
        publish(30)
        until(told)
        world.name_placement(None)
        stream.tell(world.row)
        publish(30)
        until(told)
        assert stream.status()["view"] == placement  # nothing better is looked for
        world.name_placement("replicated")
        stream.tell(world.row)
        until(lambda: has_view("replicated"))
        until(told)
    adapting.stop()


def test_mailboxes_are_grouped_if_that_saves_bytes_and_read_as_before(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_adapting, "LEAST", 10)
    monkeypatch.setattr(driver_adapting, "BATCHES_MIN", 1)
    numbers = [world.subscribe(f"price > {n / 100}", f"above {n}") for n in range(60)]
    adapting = Adapting(spark, world.data.log, every_seconds=0.2, placement="replicated")
    with streaming(spark, world, adapting=adapting) as stream:
        published = world.publish(*(float(n % 3) for n in range(300)))
        above = [at for n, at in enumerate(published) if n % 3]  # all but the zeros
        until(lambda: reached(stream, world))

        def grouped() -> bool:
            above.extend(world.publish(*([5.0] * 200)))
            until(lambda: reached(stream, world))
            return bool(stream.status()["groups"])

        until(grouped)
        changed = world.catalogue.change_filter("ada", "above 7", "price > 100").number
        world.catalogue.activate(changed, world.log.end)
        world.catalogue.delete("ada", "above 8", world.log.end)
        stream.tell(world.row)
        last = world.publish(*([9.0] * 200), 101.0)
        until(lambda: reached(stream, world))
        with Notifications(world.files.mailboxes) as mailboxes:
            assert mailboxes._ask("SELECT count(*) FROM pages")[0][0] > 0
            rows = mailboxes._ask("SELECT count(*) FROM notifications WHERE position >= ?", last[0])[0][0]
            assert rows < 10  # of those that are in no group
        assert world.told(numbers[6]) == above + last
        assert world.told(numbers[7])[: len(above)] == above  # where a row ends is for who delivers to see
        assert world.told(changed) == last[-1:]
        with Deliveries(world.data.deliveries) as deliveries:
            deliveries.acknowledge(world.catalogue.get("ada", "above 6").key, last[0])  # type: ignore[union-attr]
        until(lambda: world.told(numbers[6]) == last[1:])
    adapting.stop()
