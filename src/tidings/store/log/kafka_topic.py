"""A topic of Kafka, with one partition: a log is one order of positions.

    kafka://host:9092,host:9092/topic?security.protocol=SASL_SSL&sasl.mechanism=…

After the question mark come settings of librdkafka. A topic that does not exist is made, and keeps its records until
they are removed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tidings.store.log.log_errors import (
    LogBusyError,
    LogCorruptError,
    LogError,
    LogFullError,
    LogRangeError,
    LogUnknownError,
)

RESPONSE_SECONDS = 10.0  # that Kafka has to respond; then an error asks to try again
MIN_RECORD_BYTES = 8 << 20  # that a topic has to accept: the texts of a page, with room
_RECORD_BYTES = 16 << 20  # that a topic accepts if it is made here
_READ_AHEAD_KBYTES = 16 << 10
_FETCH_WAIT_MS = 10  # a fetch that waits at the end of the topic delays the next one by as much
_TOGETHER = 32  # records that are asked for at once
_NEAR = 64  # records that are read and dropped rather than skipped by a new fetch


class KafkaTopic:
    """Connects on first use. Any thread may use it."""

    def __init__(self, url: str) -> None:
        given = urlsplit(url)
        topic = given.path.strip("/")
        if not given.netloc or not topic or "/" in topic or "@" in given.netloc:
            raise LogError("log: give a topic as kafka://host:port/topic?sasl.username=…")
        self._topic = topic
        self._hosts = given.netloc
        self._settings: dict[str, Any] = dict(parse_qsl(given.query)) | {"bootstrap.servers": given.netloc}
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._max_record_bytes: int | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"{self._topic} of Kafka at {self._hosts}"

    @property
    def max_record_bytes(self) -> int:
        with self._lock:
            return self._known()

    def close(self) -> None:
        with self._lock:
            self._drop_producer()
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def bounds(self) -> tuple[int, int]:
        with self._lock, self._translated():
            self._known()
            return self._bounds()

    def _bounds(self) -> tuple[int, int]:
        found: Any = self._reading().get_watermark_offsets(self._partition(), RESPONSE_SECONDS, False)
        if found is None:
            raise LogBusyError(f"log: {self.name} does not respond; try again")
        return int(found[0]), int(found[1])

    # ------------------------------------------------------------------ writing

    def append(self, records: Sequence[bytes]) -> list[int]:
        """Returns when all replicas that are in sync have the records (`acks=all`)."""
        with self._lock, self._translated():
            largest = max(map(len, records), default=0)
            if largest > self._known():
                raise LogFullError(
                    f"log: {self.name} does not accept a page of {largest} bytes; raise its max.message.bytes"
                )
            offsets: dict[int, int | None] = {}
            reasons: list[str] = []

            def told(row: int, error: KafkaError | None, message: Message) -> None:
                if error is None:
                    offsets[row] = message.offset()
                else:
                    reasons.append(str(error))

            try:
                producer = self._writing()
                for row, record in enumerate(records):
                    producer.produce(self._topic, record, partition=0, on_delivery=partial(told, row))
                producer.flush(RESPONSE_SECONDS + 1)
                kept = [offset for _, offset in sorted(offsets.items()) if offset is not None]
                if len(kept) < len(records):
                    reason = reasons[0] if reasons else "no response"
                    raise LogUnknownError(
                        f"log: {self.name} did not say whether it has the events ({reason}); try again"
                    )
            except BaseException:
                # What it has sent may still arrive; the next writer takes its place, and sees.
                self._drop_producer()
                raise
            return kept

    def _writing(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                self._settings
                | {
                    "acks": "all",
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "compression.type": "none",  # pages are compressed
                    "message.max.bytes": self._known(),
                    "message.timeout.ms": round(RESPONSE_SECONDS * 1000),
                    "log_level": 2,  # what fails is raised
                }
            )
        return self._producer

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    # ------------------------------------------------------------------ reading

    def read(self, offsets: Iterable[int], *, max_bytes: int | None = None) -> dict[int, bytes]:
        left = float("inf") if max_bytes is None else max_bytes
        with self._lock, self._translated():
            found: dict[int, bytes] = {}
            for run in _runs(offsets):
                if left > 0:
                    left = self._read(run, found, left)
            return found

    def _read(self, wanted: list[int], found: dict[int, bytes], left: float) -> float:
        """Read records that lie together; returns how many more bytes are wanted."""
        consumer = self._reading()
        consumer.assign([self._partition(wanted[0])])
        try:
            at, last = wanted[0], wanted[-1]
            asked = set(wanted)
            until = time.monotonic() + RESPONSE_SECONDS
            while at <= last and left > 0:
                messages = consumer.consume(min(_TOGETHER, last + 1 - at), timeout=0.5)
                if not messages and time.monotonic() > until:
                    raise LogBusyError(f"log: {self.name} does not respond; try again")
                for message in messages:
                    until = time.monotonic() + RESPONSE_SECONDS
                    self._check(message.error(), at)
                    at = (message.offset() or 0) + 1
                    value = message.value()
                    if at - 1 in asked and value is not None:
                        found[at - 1] = value
                        left -= len(value)
        finally:
            consumer.unassign()  # stop reading ahead
        return left

    def _check(self, error: KafkaError | None, offset: int) -> None:
        if error is None:
            return
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            first, _ = self._bounds()
            if offset < first:
                raise LogRangeError(f"log: {self.name} has removed all before offset {first}, also {offset}")
            raise LogCorruptError(f"log: {self.name} has lost the record at offset {offset} ({error})", position=0)
        if not error.retriable() and error.code() not in _PASSING:
            raise KafkaException(error)

    def _reading(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._settings
                | {
                    "group.id": "tidings",  # required; no offsets are committed
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": _FETCH_WAIT_MS,
                    "fetch.message.max.bytes": _RECORD_BYTES,
                    "queued.max.messages.kbytes": _READ_AHEAD_KBYTES,
                    "log_level": 2,
                }
            )
        return self._consumer

    def _partition(self, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, 0, offset)

    # ------------------------------------------------------------------ the topic itself

    def remove_before(self, offset: int) -> None:
        with self._lock, self._translated():
            admin = AdminClient(self._settings | {"log_level": 2})
            for done in admin.delete_records([self._partition(offset)], request_timeout=RESPONSE_SECONDS).values():
                done.result()

    def _known(self) -> int:
        """Returns how many bytes a record may have; makes the topic if there is none, and checks one that exists."""
        if self._max_record_bytes is not None:
            return self._max_record_bytes
        admin = AdminClient(self._settings | {"log_level": 2})
        # As a reader: if a writer asked, Kafka might make the topic with its own settings.
        described = self._reading().list_topics(self._topic, timeout=RESPONSE_SECONDS).topics[self._topic]
        if described.error is not None:
            self._make(admin)
        elif len(described.partitions) != 1:
            raise LogError(
                f"log: {self.name} has {len(described.partitions)} partitions, and a log is one order of events: give "
                "a topic with one partition, or a new one"
            )
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        (asked,) = admin.describe_configs([resource], request_timeout=RESPONSE_SECONDS).values()
        bytes_max = int(asked.result()["max.message.bytes"].value)
        if bytes_max < MIN_RECORD_BYTES:
            raise LogError(
                f"log: {self.name} accepts records of {bytes_max} bytes; set its max.message.bytes to {_RECORD_BYTES}"
            )
        self._max_record_bytes = bytes_max - 1024  # Kafka counts its own framing too
        return self._max_record_bytes

    def _make(self, admin: AdminClient) -> None:
        # Only the service removes events: it knows which are still needed.
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(_RECORD_BYTES),
        }
        new = NewTopic(self._topic, num_partitions=1, replication_factor=-1, config=config)
        try:
            for done in admin.create_topics([new], request_timeout=RESPONSE_SECONDS).values():
                done.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # made by another process at this moment
                raise
        until = time.monotonic() + RESPONSE_SECONDS
        while time.monotonic() < until:  # a new topic is not ready at once
            known = self._reading().list_topics(self._topic, timeout=RESPONSE_SECONDS).topics[self._topic]
            if known.error is None and all(partition.leader >= 0 for partition in known.partitions.values()):
                return
            time.sleep(0.05)
        raise LogBusyError(f"log: {self.name} was made, and is not ready yet; try again")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raises Kafka's errors as ours."""
        try:
            yield
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() == KafkaError._BAD_MSG:
                raise LogCorruptError(f"log: {self.name} has a damaged record ({error})", position=0) from raised
            if error.retriable() or error.code() in _PASSING:
                raise LogBusyError(f"log: {self.name} cannot be reached ({error}); try again") from raised
            raise LogError(f"log: {self.name}: {error}") from raised


_PASSING = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
)


def _runs(offsets: Iterable[int]) -> Iterator[list[int]]:
    """Yields offsets in runs that lie near to each other."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > _NEAR:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run
