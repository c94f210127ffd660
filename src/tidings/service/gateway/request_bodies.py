"""Bodies of requests: counted while they come, in the time that they have, and decompressed within bounds."""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import Executor

from starlette.requests import ClientDisconnect, Request

from tidings.service.gateway.json_bodies import malformed, too_large
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.quotas import ServiceLimits
from tidings.service.gateway.tenant_use import TenantUse

_PIECE = 1 << 16
_FIRST = 1 << 9  # bytes of a gzip member that are looked at first
_GZIP = 16 + zlib.MAX_WBITS
_QUOTA = "uploading_bytes"


class Bodies:
    """Reads bodies, each from its tenant's share of the memory that there is for all."""

    def __init__(self, use: TenantUse, executor: Executor) -> None:
        self._use = use
        self._limits = use.quotas.service
        self._executor = executor

    def held(self, tenant: str) -> Held:
        """Room for one body, which grows with it and is free again when its block ends."""
        return Held(self._use, tenant)

    async def read(self, request: Request, max_bytes: int, held: Held) -> bytes:
        """The body as its sender wrote it, decompressed; 413 as soon as there is more than is taken."""
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise Problem(415, "encoding", f"the content encoding '{encoding[:40]}' is not taken; send gzip, or none")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        body = await received(request, max_bytes, held, self._limits)
        if encoding in ("gzip", "x-gzip"):
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(self._executor, gunzipped, body, max_bytes)
            held.grow(len(body))
        return body


class Held:
    """What one body takes of its tenant's share."""

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
    """The body as it was sent; 408 where it takes too long.

    It has some seconds to come in, and as many again whenever it has brought what the least rate makes of these: so one
    that stops is refused soon, however much of it is there.
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
                    whole = piece  # as nearly always, all of it
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
    """What was compressed, as far as it is allowed to reach: a small body can stand for a huge one.

    A body may be many members, one after the other. What zlib has not used of its input it copies, so a member is given
    little at first, and twice as much each time that it wants more: all copies together are as long as the body.
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
    """The media type in lower case; 415 where there is none, or the charset is not UTF-8."""
    written = request.headers.get("content-type", "")
    kind, *parameters = (part.strip().lower() for part in written.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise Problem(415, "media-type", f"the charset {value[:40]!r} is not taken; send UTF-8")
    if not kind:
        raise Problem(415, "media-type", "the request has no Content-Type; say what the body is")
    return kind


def expect_json(request: Request, *others: str) -> None:
    kind = media_type(request)
    if kind not in ("application/json", *others):
        wanted = " or ".join(("application/json", *others))
        raise Problem(415, "media-type", f"the media type '{kind[:80]}' is not taken here; send {wanted}")


def _too_large(max_bytes: int) -> Problem:
    return too_large(f"the body has more than the {max_bytes} bytes that are taken; send less at a time")


def _too_slow(size: int, limits: ServiceLimits) -> Problem:
    return Problem(
        408, "timeout",
        f"the body is too slow: {size:,} bytes came. It has {limits.body_seconds:g} seconds, and more while it "
        f"comes at {limits.min_bytes_per_second:,} bytes a second; send it again, or less at a time",
        headers={"Connection": "close", "Retry-After": "1"}, limit="body_seconds", value=limits.body_seconds,
    )  # fmt: skip
