"""Which stream matches each domain: one of its own, or the one that small domains share.

    new ─► shared ─► leaving ─► own ─► returning ─► shared
             (it has grown)          (it is small again)

A domain with a checkpoint of its own has its own stream; all others share one. Leaving: the next version of the
shared stream is without the domain, and its own stream begins where the shared one was. What both match, the mailboxes
take once. Returning, one domain at a time: the next version of the shared stream has the domain. Batches that were
planned without it end before the log's end as it was when that version was there; the domain's own stream ends when it
has come as far, and then its checkpoint is removed. Again both may match some events. Nobody waits for a domain that
moves.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidings.service.data.data_directory import DomainFiles, parts_of_key
from tidings.service.driver.domain_stream import DomainStream
from tidings.service.driver.shared_stream import SharedStream
from tidings.service.driver.stream_thread import DriverContext
from tidings.store.catalogue import DomainRow
from tidings.store.log.log_files import sync_directory
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.notifications import LOG, MAX_WAITING, Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

LOOK_SECONDS = 2.0  # between looks at whether a domain has grown
LEFT = "left the shared stream"  # in mailboxes, the query that has come as far as the shared stream had
RETURN_SECONDS = 60.0  # after which a domain that has not returned stays as it is

_log = logging.getLogger("tidings.service")


@dataclass(frozen=True)
class Sharing:
    """Up to which limits a domain is small. One that has its own stream returns when it is far below them."""

    subscriptions: int = 2_000
    events_per_second: float = 300.0
    busy_share: float = 0.25  # of the time, for matching its events: others would wait for it
    busy_at_most: int = 4  # domains of a tenant that have their own stream only for that reason
    short_batch_seconds: float = 2.0  # batches of a domain that returns take no longer
    own_at_most: int = 16  # streams of single domains; each takes processes and memory of the machine
    quiet_seconds: float = 600.0  # for which it has to be small before it returns

    @property
    def is_off(self) -> bool:
        return self.subscriptions <= 0

    @property
    def own_of_a_tenant_at_most(self) -> int:
        return max(1, self.own_at_most // 2)


@dataclass
class _Returning:
    """A domain on its way back to the shared stream."""

    key: str
    began: float
    until: int | None = None  # the position that its own stream has to reach; None before the shared one has it


class Streams:
    """All streams of a driver. Used by one thread."""

    def __init__(self, context: DriverContext, sharing: Sharing) -> None:
        self._context = context
        self._sharing = sharing
        self._rows: dict[str, DomainRow] = {}
        self._revision = -1
        self._own: dict[str, DomainStream] = {}
        self._leaving: list[DomainStream] = []  # of deleted domains
        self._shared: SharedStream | None = None if sharing.is_off else SharedStream(context)
        self._deleted: set[str] = set()  # domains whose files can go
        self._is_started = False
        self._returning: _Returning | None = None
        self._busy: set[str] = set()  # domains that have their own stream because matching takes long
        self._quiet: dict[str, tuple[float, int]] = {}  # since when a domain with its own stream is small
        self._looked = 0.0

    def follow(self, rows: Mapping[str, DomainRow], revision: int) -> None:
        """Match these domains, as the catalogue has them at a revision."""
        before, self._rows, self._revision = self._rows, dict(rows), revision
        self._deleted |= before.keys() - rows.keys()
        for key in self._own.keys() - rows.keys():
            gone = self._own.pop(key)
            gone.stop()
            self._leaving.append(gone)
        is_known = bool(before) or self._shared is None  # how large domains are: the streams have counted
        counts = {} if is_known else self._context.catalogue.filter_counts()
        for key, row in rows.items():
            if key in before and before[key].revision == row.revision:
                continue
            if key in self._own:
                self._own[key].tell(row)
            elif key in before:
                continue  # of the shared stream; `look` sees when it has grown
            elif self._shared is None or self._has_checkpoint(row) or self._needs_own(key, counts.get(key, 0)):
                self._start_own(row)
        self._tell_shared()

    def look(self) -> None:
        """Every LOOK_SECONDS, move domains that have grown and those that are small again."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self._remove_deleted()
        if self._shared is None:
            return
        if self._returning is not None:
            self._go_on_returning(self._returning, self._shared)
            return
        has_grown = False
        for key, row in self._rows.items():
            if key not in self._own and self._needs_own(key):
                _log.info("%s: gets its own stream", key)
                self._start_own(row)
                has_grown = True
        if has_grown:
            self._tell_shared()
        elif self._shared.status()["state"] == "running" and (small := self._small_again()) is not None:
            _log.info("%s: returns to the shared stream", small)
            self._returning = _Returning(small, time.monotonic())
            self._tell_shared()

    def status(self) -> dict[str, dict[str, Any]]:
        """Returns the status of each domain."""
        found = {key: stream.status() for key, stream in self._own.items()}
        if self._shared is not None:
            found |= {key: status for key, status in self._shared.statuses() if key not in found}
        return found

    def shared_status(self) -> dict[str, Any] | None:
        return None if self._shared is None else self._shared.status()

    @property
    def have_matched(self) -> bool:
        streams = [*self._own.values(), *([] if self._shared is None else [self._shared])]
        return any(stream.has_matched for stream in streams)

    def stop(self) -> None:
        shared = [self._shared] if self._shared is not None and self._is_started else []
        for stream in [*self._own.values(), *shared]:
            stream.stop()
        for stream in [*self._own.values(), *shared, *self._leaving]:
            stream.join()

    def clear(self) -> None:
        """Report no domain any more."""
        self._own.clear()
        self._shared = None

    def _remove_deleted(self) -> None:
        """Remove the files of domains that were deleted while this driver ran, once no stream uses them."""
        self._leaving = [stream for stream in self._leaving if stream.is_alive]
        busy = {*self._rows, *(stream.key for stream in self._leaving)}
        for key in self._deleted - busy:
            if self._shared is None or not self._shared.has(key):
                shutil.rmtree(self._context.data.domains / key, ignore_errors=True)
                self._deleted.discard(key)
        self._deleted -= self._rows.keys()  # a domain that was made again keeps the files

    # ------------------------------------------------------------------ where a domain belongs

    def _has_checkpoint(self, row: DomainRow) -> bool:
        return self._context.data.domain(row.tenant, row.name).query.exists()

    def _needs_own(self, key: str, filters: int = 0) -> bool:
        """Whether a domain gets its own stream: it is large, or has its own placement, and there may be one more."""
        sharing, shared = self._sharing, self._shared
        if shared is None:
            return True
        tenant = parts_of_key(key)[0]
        owned = sum(parts_of_key(other)[0] == tenant for other in self._own)
        if len(self._own) >= sharing.own_at_most or owned >= sharing.own_of_a_tenant_at_most:
            return False
        if self._rows[key].placement is not None or max(filters, shared.subscriptions(key)) > sharing.subscriptions:
            return True
        pace = shared.pace(key)
        if pace.events > sharing.events_per_second:
            return True
        theirs = sum(parts_of_key(other)[0] == tenant for other in self._busy)
        if pace.seconds > sharing.busy_share and theirs < sharing.busy_at_most:
            self._busy.add(key)
            return True
        return False

    def _start_own(self, row: DomainRow) -> None:
        for stream in self._leaving:
            if stream.key == row.key:  # of a deleted domain with the same name
                stream.join()
        self._leaving = [stream for stream in self._leaving if stream.key != row.key]
        begin = self._passed(row)
        leave_shared(self._context.data.domain(row.tenant, row.name), begin)
        self._own[row.key] = DomainStream(self._context, row, begin=begin)
        self._own[row.key].start()

    def _passed(self, row: DomainRow) -> int:
        """Returns the position before which the shared stream has matched all events of a domain."""
        if self._shared is not None and self._shared.has(row.key):
            return self._shared.reached
        progress = self._context.data.shared.progress
        if self._has_checkpoint(row) or not progress.exists():
            return 0
        with SharedProgress(progress, read_only=True) as noted:
            return noted.resume

    def _tell_shared(self) -> None:
        if self._shared is None:
            return
        returning = None if self._returning is None else self._returning.key
        shared = {key: row for key, row in self._rows.items() if key not in self._own or key == returning}
        self._shared.tell(shared, self._revision)
        if not self._is_started:
            self._shared.start()
            self._is_started = True

    # ------------------------------------------------------------------ returning

    def _small_again(self) -> str | None:
        """Returns a domain whose own stream had few subscriptions and events for a while."""
        now, sharing = time.monotonic(), self._sharing
        for key, stream in self._own.items():
            if self._rows[key].placement is not None:
                continue
            status = stream.status()
            since, events = self._quiet.get(key, (now, status["events"]))
            pace = (status["events"] - events) / max(now - since, 1.0)
            takes_long = status["batch_seconds"] > sharing.short_batch_seconds
            if takes_long or pace > sharing.events_per_second / 4 or not stream.has_at_most(sharing.subscriptions // 2):
                since, events = now, status["events"]
            self._quiet[key] = (since, events)
            if now - since > sharing.quiet_seconds and status["state"] == "running":
                return key
        return None

    def _go_on_returning(self, one: _Returning, shared: SharedStream) -> None:
        stream = self._own.get(one.key)
        if stream is None or time.monotonic() - one.began > RETURN_SECONDS:
            self._end_returning(one)  # it keeps its own stream, which has matched everything meanwhile
            return
        if one.until is None and shared.has(one.key):
            with LogReader(self._context.data.log) as log:
                one.until = log.end
        if one.until is None or stream.status()["reached"] < one.until:
            return
        stream.stop()
        stream.join()
        del self._own[one.key]
        files = self._context.data.domains / one.key
        put_aside = files / "query.left"
        shutil.rmtree(put_aside, ignore_errors=True)
        (files / "query").rename(put_aside)  # from here on it belongs to the shared stream
        shutil.rmtree(put_aside, ignore_errors=True)
        self._busy.discard(one.key)
        self._end_returning(one)

    def _end_returning(self, one: _Returning) -> None:
        self._returning = None
        self._quiet.pop(one.key, None)
        self._tell_shared()


def leave_shared(files: DomainFiles, passed: int) -> None:
    """Make durable that a domain has a stream of its own, which begins at the position that the shared one has passed.

    Called before the shared stream is without the domain. After a crash, an empty checkpoint says that the domain has
    left, and its mailboxes say how far it was matched: they know of no event that matched nothing otherwise, and
    retention may have removed such events since.
    """
    if files.query.exists():
        return
    files.folder.mkdir(parents=True, exist_ok=True)
    if passed:
        with Notifications(files.mailboxes, max_waiting=MAX_WAITING) as mailboxes:
            mailboxes.load([], query=LEFT, batch=passed, version=0, reached={LOG: passed - 1})
    files.query.mkdir()
    for folder in (files.folder, files.folder.parent):
        sync_directory(folder)
