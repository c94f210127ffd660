"""A service without its gateway, whose part a test plays: for tests of what the driver does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.service.data.data_directory import DataDirectory
from tidings.service.driver.domain_adaptation import Adapting
from tidings.service.driver.domain_stream import DomainStream
from tidings.service.driver.stream_thread import DriverContext
from tidings.store.catalogue import Catalogue, NewSubscription
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import Notifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# `time`, `position` and `source` are also what the pipeline calls columns of its own.
DOMAIN = Domain("quotes", [Attribute("price", "double"), Attribute("time", "string"), Attribute("source", "string")])
MORE = Domain("quotes", [*DOMAIN.attributes, Attribute("position", "bigint")])


class World:
    """A service without its gateway, whose part the test plays."""

    def __init__(self, path: Path) -> None:
        self.data = DataDirectory(path)
        self.data.make()
        self.files = self.data.domain("ada", "quotes")
        self.log = Log(self.data.log)
        self.catalogue = Catalogue(self.data.catalogue)
        self.domain = DOMAIN
        self.define(DOMAIN)

    def close(self) -> None:
        self.log.close()
        self.catalogue.close()

    def define(self, domain: Domain) -> None:
        self.domain = Domain("ada.quotes", domain.attributes)
        self.catalogue.put_domain("ada", "quotes", domain.to_json(), inferred=False)

    def name_placement(self, placement: str | None) -> None:
        definition = self.row.definition
        self.catalogue.put_domain("ada", "quotes", definition, inferred=False, placement=placement)

    @property
    def row(self) -> Any:
        return self.catalogue.domain("ada", "quotes")

    def subscribe(self, filter: str, id: str, replay_from: int | None = None) -> int:
        made = self.catalogue.create(NewSubscription("ada", "quotes", filter, id=id, replay_from=replay_from))
        self.catalogue.activate(made.filters[-1].number, self.log.end)
        return made.filters[-1].number

    def publish(self, *prices: float, **further: Any) -> list[int]:
        events = [{"price": price, "time": "noon", "source": "s", **further} for price in prices]
        return self.log.append(read_events(events, self.domain))

    def told(self, number: int) -> list[int]:
        if not self.files.mailboxes.exists():  # the driver makes it when it has an index
            return []
        with Notifications(self.files.mailboxes) as mailboxes:
            return mailboxes.positions_of(number)


def context_of(
    spark: SparkSession, world: World, *, recover: bool = False, adapting: Adapting | None = None
) -> DriverContext:
    return DriverContext(spark, world.data, world.catalogue, str(world.data.catalogue), recover, adapting)


@contextmanager
def streaming(
    spark: SparkSession, world: World, *, recover: bool = False, adapting: Adapting | None = None
) -> Iterator[DomainStream]:
    stream = DomainStream(context_of(spark, world, recover=recover, adapting=adapting), world.row)
    stream.start()
    try:
        yield stream
    finally:
        stream.stop()
        stream.join()


def reached(stream: DomainStream, world: World) -> bool:
    assert stream.status()["problem"] is None, stream.status()
    return bool(stream.status()["reached"] == world.log.end)
