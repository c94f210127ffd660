"""A data directory as a service leaves it when it stops, without having run one."""

from __future__ import annotations

import json

import pyarrow as pa

from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
from tidings.pipeline.streams.index_changes import IndexChanges, empty_index
from tidings.service.data.data_directory import DataDirectory, DomainFiles
from tidings.service.data.private_files import tighten
from tidings.service.driver.followed_filters import domain_of
from tidings.service.supervisor import ServicePlan, prepared
from tidings.store.catalogue import Catalogue, NewSubscription
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.deliveries import Deliveries
from tidings.store.mailboxes.notifications import LOG, Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

DEFINITION = json.dumps({"name": "quotes", "attributes": [{"name": "price", "type": "double"}]})


def fill(data: DataDirectory) -> DomainFiles:
    """A directory as a service leaves it: ten events, a subscription that has got half of them, a stream."""
    files = data.domain("default", "quotes")
    with prepared(ServicePlan(data)):
        pass
    with Log(data.log) as log, Catalogue(data.catalogue) as catalogue:
        catalogue.put_domain("default", "quotes", DEFINITION, inferred=False)
        made = catalogue.create(NewSubscription(tenant="default", domain="quotes", filter="price > 1"))
        number = made.filters[-1].number
        catalogue.activate(number, log.end)
        for n in range(5):
            log.append([{"price": float(n)}, {"price": float(n)}], domain=files.key)
        row = catalogue.domain("default", "quotes")
        assert row is not None
    files.folder.mkdir()
    with Notifications(files.mailboxes, max_waiting=100) as mailboxes:
        matches = pa.table({"position": [2, 3], "subscriptions": [[number], [number]]})
        checkpoint = Checkpoint(
            files.query, QueryIdentity(f"log:{data.log}", str(files.index), f"store:{files.mailboxes}", "ids")
        )
        mailboxes.load([matches], query=checkpoint.query, batch=0, version=1, reached={LOG: 9})
        one_batch_done(checkpoint)
    data.shared.folder.mkdir()
    checkpoint = Checkpoint(data.shared.query, QueryIdentity(f"log:{data.log}", "versions", "shared", "ids"))
    with SharedProgress(data.shared.progress) as progress:
        progress.note(checkpoint.query, 0, 9, {})
    one_batch_done(checkpoint)
    with Deliveries(data.deliveries) as deliveries:
        deliveries.acknowledge(made.key, 2)
        deliveries.acknowledge(-number, 2)
    empty_index(files.index, domain_of(row))
    IndexChanges(files.index).apply(upsert=pa.table({"id": [number], "filter": ["price > 1"]}))
    (data.jobs / "a.json").write_text('{"done":true}')
    tighten(data.path)
    return files


def one_batch_done(checkpoint: Checkpoint) -> None:
    """As Spark writes it down; lets go of the checkpoint."""
    for folder in ("offsets", "commits"):
        (checkpoint.path / folder).mkdir()
    (checkpoint.path / "offsets" / "0").write_text('v1\n{}\n{"log": 10, "subscriptions": 1}')
    (checkpoint.path / "commits" / "0").write_text("v1\n{}")
    checkpoint.release()
