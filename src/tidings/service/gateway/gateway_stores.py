"""The stores that a gateway has open, and the threads that use them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from tidings.service.data.data_directory import DataDirectory
from tidings.service.gateway.gateway_settings import Settings
from tidings.service.gateway.scheduling import FairThreads
from tidings.store.catalogue import Catalogue
from tidings.store.log.log_in_topic import open_log
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.deliveries import Deliveries


@dataclass(frozen=True)
class Stores:
    """What is open. The four kinds of threads must not wait for each other: a locked catalogue stops no delivery."""

    data: DataDirectory
    settings: Settings
    log: Log
    reader: LogReader  # apart from the writer's, so that neither waits for the other
    catalogue: Catalogue
    deliveries: Deliveries
    storing: FairThreads
    delivering: FairThreads
    reading: FairThreads
    computing: FairThreads  # for work that takes long, one of a tenant at a time


def open_stores(data: DataDirectory, settings: Settings, opened: ExitStack) -> Stores:
    """Opens the stores of a data directory; `opened` closes them, and ends the threads before that."""
    data.make()
    log = open_log(data.log, settings.log)
    opened.callback(log.close)
    reader = LogReader(data.log)
    opened.callback(reader.close)
    catalogue = Catalogue(settings.catalogue or data.catalogue)
    opened.callback(catalogue.close)
    deliveries = Deliveries(data.deliveries)
    opened.callback(deliveries.close)
    return Stores(
        data,
        settings,
        log,
        reader,
        catalogue,
        deliveries,
        storing=FairThreads(8, "tidings-store"),
        delivering=FairThreads(4, "tidings-deliver"),
        reading=FairThreads(3, "tidings-read"),
        computing=FairThreads(4, "tidings-compute", of_one=1),
    )
