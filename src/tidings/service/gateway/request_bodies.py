"""Bodies of requests: received within bounds of size and time, decompressed, and read as strict JSON.

An event keeps the text that it came with, so that the log need not write it again. Strict JSON is read by
`strict_json`, which finds duplicate keys and keeps every digit. Where a look at the whole text and a count of the keys
show that neither can matter, orjson reads it instead, five times as fast (`quick_lines`, `quick_array`).
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson
import re2
from starlette.requests import ClientDisconnect, Request

from tidings.model import strict_json
from tidings.model.domain import Domain
from tidings.model.event_values import kind_of
from tidings.model.strict_json import LINE, MAX_DEPTH
from tidings.model.types import DataType, Path
from tidings.service.gateway.gateway_settings import BodyLimits, ServiceLimits
from tidings.service.gateway.problems import Problem, pointer_to
from tidings.service.gateway.scheduling import FairThreads
from tidings.service.gateway.tenant_use import TenantUse

Exact: TypeAlias = "tuple[Path, ...] | None"  # attributes whose numbers keep every digit; None: all do

# A number that may be beyond 64 bits or beyond a double, as `strict_json` has it; or space between a key and its colon.
_ODD = re2.compile(rb'(?:^|[^0-9.])[0-9]{19}|[0-9][eE][+-]?[0-9]{3}|"[ \t\r\n]+:')

_PIECE = 1 << 16
_FIRST = 1 << 9  # bytes of a gzip member that are read first
_GZIP = 16 + zlib.MAX_WBITS
_QUOTA = "uploading_bytes"


# -- strict reading ----------------------------------------------------------------------------------


class Events(NamedTuple):
    """Events as objects, and the text of each."""

    objects: list[dict[str, Any]]
    texts: list[str]


def text_of(body: bytes) -> str:
    with _refused():
        return strict_json.text_of(body)


def object_of(body: bytes) -> dict[str, Any]:
    """Returns the object that a body is."""
    with _refused():
        value = strict_json.read_one(strict_json.text_of(body)).value
    if not isinstance(value, dict):
        raise Problem(422, "invalid", f"an object is wanted, and this is {kind_of(value)}", pointer="")
    return value


def one_event(body: bytes, limits: BodyLimits) -> Events:
    """Reads a body that is one event."""
    if (size := len(body.strip(b" \t\r\n"))) > limits.event_bytes:  # before it is parsed
        raise large_event(size, limits.event_bytes)
    text = text_of(body)
    with _refused(limits.event_bytes):
        found = strict_json.read_one(text)
    return _events([(text[found.start : found.end], found.value)], limits, many=False)


def many_events(body: bytes, limits: BodyLimits, exact: Exact = None) -> Events:
    """Reads a body that is an array of events."""
    text = text_of(body)
    few = body.count(b"{") <= limits.events  # otherwise they are counted as they are read
    if few and exact is not None and (quick := quick_array(body, text, exact, limits.event_bytes)) is not None:
        return Events(*quick)
    found = ((text[one.start : one.end], one.value) for one in strict_json.read_array(text, limits.event_bytes))
    return _events(found, limits)


def event_lines(body: bytes, limits: BodyLimits, exact: Exact = None) -> Events:
    """Reads a body with one event per line; empty lines are skipped."""
    text = text_of(body)
    few = body.count(b"\n") < limits.events
    if few and exact is not None and (quick := quick_lines(body, text, exact, limits.event_bytes)) is not None:
        return Events(*quick)
    return _events(strict_json.read_lines(text), limits)


def malformed(detail: str, row: int | None = None) -> Problem:
    return Problem(400, "malformed", detail, pointer=_place(row))


def too_large(detail: str, limit: str, value: int, row: int | None = None) -> Problem:
    return Problem(413, "too-large", detail, pointer=_place(row), limit=limit, value=value)


def too_many_events(limits: BodyLimits) -> Problem:
    many = f"one request has at most {limits.events:,} events, and this one has more; send fewer at a time"
    return too_large(many, "max_batch_events", limits.events)


def large_event(size: int, most: int, row: int | None = None) -> Problem:
    return too_large(f"the event has {size} bytes, and at most {most} are taken", "max_event_bytes", most, row)


def _events(found: Iterable[tuple[str, Any]], limits: BodyLimits, *, many: bool = True) -> Events:
    events = Events([], [])
    max_bytes = limits.event_bytes
    with _refused(limits.event_bytes):
        for number, (text, value) in enumerate(found):
            row = number if many else None
            if number == limits.events:
                raise too_many_events(limits)
            # No character has more than four bytes, so only the bytes of long texts are counted.
            if len(text) * 4 > max_bytes and (size := len(text.encode())) > max_bytes:
                raise large_event(size, max_bytes, row)
            if not isinstance(value, dict):
                detail = f"an event is an object, and this is {kind_of(value)}"
                raise Problem(400, "event", detail, pointer=_place(row))
            events.objects.append(value)
            events.texts.append(text)
    return events


@contextlib.contextmanager
def _refused(max_event_bytes: int = 0) -> Iterator[None]:
    try:
        yield
    except strict_json.TooLongError as error:
        large = f"{error}, and an event has no more bytes; send smaller ones"
        raise too_large(large, "max_event_bytes", max_event_bytes, error.row) from None
    except strict_json.MalformedError as error:
        raise malformed(str(error), error.row) from None


def _place(row: int | None) -> str | None:
    return None if row is None else pointer_to(row)


# -- quick reading -----------------------------------------------------------------------------------


def exact_paths(domain: Domain) -> Exact:
    """Returns the attributes of a domain that are integers or decimals; None if some are inside arrays or maps."""
    if not domain.has_cloud_events or any(_has_exact_parts(type_) for type_ in domain.leaves.values()):
        return None
    return tuple(path for path, type_ in domain.leaves.items() if _is_exact(type_))


def quick_lines(body: bytes, text: str, exact: Sequence[Path], max_bytes: int) -> tuple[list[Any], list[str]] | None:
    """Returns the events of a text with one per line, and their texts; None if they have to be read strictly."""
    lines = [written[0].rstrip(" \t\r") for written in LINE.finditer(text)]
    return _read(body, lines, exact, max_bytes)


def quick_array(body: bytes, text: str, exact: Sequence[Path], max_bytes: int) -> tuple[list[Any], list[str]] | None:
    """Returns the same for an array.

    Texts that are objects each, and between them commas, are an array of these objects, however they were found.
    """
    text = text.strip(" \t\r\n")
    if not (text.startswith("[") and text.endswith("]")):
        return None
    inner = text[1:-1].strip(" \t\r\n")
    parts = inner.split("},{") if "},{" in inner else inner.split("}, {")
    last = len(parts) - 1
    texts = [f"{'{' if row else ''}{part}{'}' if row < last else ''}" for row, part in enumerate(parts)]
    return _read(body, texts, exact, max_bytes)


def _read(body: bytes, texts: list[str], exact: Sequence[Path], max_bytes: int) -> tuple[list[Any], list[str]] | None:
    if b"\\" in body or _ODD.search(body):
        return None
    objects: list[Any] = []
    try:
        for text in texts:
            if len(text) * 4 > max_bytes:  # before it is parsed, all at once
                return None
            event = orjson.loads(text)
            if type(event) is not dict:
                return None
            braces = text.count("{")
            # Without a backslash every quote begins or ends a text: before a colon it ends a key, or begins with one.
            if braces + text.count("[") > MAX_DEPTH or text.count('":') != _keys(event, braces):
                return None
            objects.append(event)
    except orjson.JSONDecodeError:
        return None
    return None if _has_fraction(objects, exact) else (objects, texts)


def _keys(event: dict[str, Any], braces: int) -> int:
    """Returns how many keys an object has, including inner objects; fewer than the text has if one occurs twice."""
    if braces == 1:
        return len(event)
    data = event.get("data")
    if braces == 2 and type(data) is dict:
        return len(event) + len(data)
    found, level = 0, [event]
    while level:
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                found += len(value)
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
    return found


def _has_fraction(objects: list[Any], paths: Sequence[Path]) -> bool:
    """Whether an attribute that keeps every digit has a number with a point: 1.0 is an integer, and 8.40 exact."""
    records = [
        event["data"] if "specversion" in event and type(event.get("data")) is dict else event for event in objects
    ]
    for path in paths:
        values: list[Any] = records
        for part in path:
            values = [value.get(part) if type(value) is dict else None for value in values]
        if float in set(map(type, values)):
            return True
    return False


def _is_exact(type_: DataType) -> bool:
    return type_.is_integral or type_.name == "decimal"


def _has_exact_parts(type_: DataType) -> bool:
    parts = [part for _, part in type_.fields] if type_.element is None else [type_.element]
    return any(_is_exact(part) or _has_exact_parts(part) for part in parts)


# -- receiving ---------------------------------------------------------------------------------------


class Bodies:
    """Reads bodies, each within its tenant's share of the memory for all."""

    def __init__(self, use: TenantUse, threads: FairThreads) -> None:
        self._use = use
        self._limits = use.quotas.service
        self._threads = threads

    def held(self, tenant: str) -> Held:
        """Reserves memory for one body; it grows with the body and is free again when its block ends."""
        return Held(self._use, tenant)

    async def read(self, request: Request, max_bytes: int, held: Held) -> bytes:
        """Returns a body, decompressed; raises a 413 as soon as it exceeds `max_bytes`."""
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise Problem(
                415, "encoding", f"the content encoding '{encoding[:40]}' is not supported; send gzip, or none"
            )
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        body = await received(request, max_bytes, held, self._limits)
        if encoding in ("gzip", "x-gzip"):
            body = await self._threads.run(gunzipped, body, max_bytes)
            held.grow(len(body))
        return body


class Held:
    """What one body uses of its tenant's share."""

    def __init__(self, use: TenantUse, tenant: str) -> None:
        self._use = use
        self._tenant = tenant
        self.bytes = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bytes:
            self._use.give(self._tenant, _QUOTA, self.bytes)

    def grow(self, size: int) -> None:
        self._use.take(self._tenant, _QUOTA, size)
        self.bytes += size


async def received(request: Request, max_bytes: int, held: Held, limits: ServiceLimits) -> bytes:
    """Returns a body as it was sent; raises a 408 if it takes too long.

    It has some seconds, and as many again whenever the bytes for them at the minimum rate have arrived: a body that
    stops is refused soon, however much of it has arrived.
    """
    whole: bytes | bytearray = b""
    seconds, noted = limits.body_seconds, 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as deadline:
            async for piece in request.stream():
                if len(whole) + len(piece) > max_bytes:
                    raise _too_large(max_bytes)
                held.grow(len(piece))
                if not whole:
                    whole = piece  # nearly always all of it
                elif piece:
                    if isinstance(whole, bytes):
                        whole = bytearray(whole)
                    whole += piece
                if len(whole) - noted >= seconds * limits.min_bytes_per_second:
                    noted = len(whole)
                    deadline.reschedule(loop.time() + seconds)
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the body ended before its end") from None
    except TimeoutError:
        raise _too_slow(len(whole), limits) from None
    return bytes(whole)


def gunzipped(body: bytes, max_bytes: int) -> bytes:
    """Returns a decompressed body; raises a 413 beyond `max_bytes`, since a small body can stand for a huge one.

    A body may be many members, one after the other. zlib copies the input that it has not used, so a member is given
    little at first, and twice as much each time that it needs more: all copies together are as long as the body.
    """
    pieces: list[bytes] = []
    size, at, view = 0, 0, memoryview(body)
    while at < len(body):
        member, step = zlib.decompressobj(_GZIP), _FIRST
        waiting: bytes | memoryview = b""
        while not member.eof:
            if not waiting:
                if at == len(body):
                    raise malformed("the gzip of the body ends too early")
                waiting = view[at : at + step]
                at, step = at + len(waiting), min(2 * step, _PIECE)
            try:
                piece = member.decompress(waiting, _PIECE)
            except zlib.error as error:
                raise malformed(f"the body is not gzip: {error}") from None
            waiting = member.unconsumed_tail
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            if piece:
                pieces.append(piece)
        at -= len(member.unused_data)
    return b"".join(pieces)


def media_type(request: Request) -> str:
    """Returns the media type in lower case; raises a 415 if there is none, or the charset is not UTF-8."""
    written = request.headers.get("content-type", "")
    kind, *parameters = (part.strip().lower() for part in written.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise Problem(415, "media-type", f"the charset {value[:40]!r} is not supported; send UTF-8")
    if not kind:
        raise Problem(415, "media-type", "the request has no Content-Type; say what the body is")
    return kind


def expect_json(request: Request, *others: str) -> None:
    kind = media_type(request)
    if kind not in ("application/json", *others):
        wanted = " or ".join(("application/json", *others))
        raise Problem(415, "media-type", f"the media type '{kind[:80]}' is not supported here; send {wanted}")


def _too_large(max_bytes: int) -> Problem:
    large = f"the body has more than the {max_bytes} bytes that are taken; send less at a time"
    return too_large(large, "body_bytes", max_bytes)


def _too_slow(size: int, limits: ServiceLimits) -> Problem:
    return Problem(
        408,
        "timeout",
        f"the body is too slow: {size:,} bytes came. It has {limits.body_seconds:g} seconds, and more while it "
        f"comes at {limits.min_bytes_per_second:,} bytes a second; send it again, or less at a time",
        headers={"Connection": "close", "Retry-After": "1"},
        limit="body_seconds",
        value=limits.body_seconds,
    )
