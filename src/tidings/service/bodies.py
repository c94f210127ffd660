"""Bodies of requests: counted while they are read, decompressed within bounds, and bounded all together."""

from __future__ import annotations

import zlib

from starlette.requests import ClientDisconnect, Request

from tidings.service.json_bodies import malformed, too_large
from tidings.service.problems import Problem, busy

_PIECE = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS


class Bodies:
    """All bodies that are in memory at one time: past a bound, the next is refused and may come again."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0

    def held(self) -> Held:
        """Room for one body, which grows with it and is free again when its block ends."""
        return Held(self)

    def take(self, size: int, held: Held) -> None:
        if self.bytes > held.bytes and self.bytes + size > self._max_bytes:
            raise busy("the service holds as many requests as it can; send this one again", retry_after=1)
        self.bytes += size


class Held:
    """What one body takes."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.bytes = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.bytes -= self.bytes

    def grow(self, size: int) -> None:
        self._bodies.take(size, self)
        self.bytes += size


async def read_body(request: Request, max_bytes: int, held: Held) -> bytes:
    """The body as its sender wrote it, decompressed; 413 as soon as there is more than is taken."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", ""):
        raise Problem(415, "encoding", f"the content encoding '{encoding[:40]}' is not taken; send gzip, or none")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            held.grow(len(piece))
            pieces.append(piece)
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the body ended before its end") from None
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if encoding in ("gzip", "x-gzip"):
        body = gunzipped(body, max_bytes)
        held.grow(len(body))
    return body


def gunzipped(body: bytes, max_bytes: int) -> bytes:
    """What was compressed, as far as it is allowed to reach: a small body can stand for a huge one."""
    pieces: list[bytes] = []
    size = 0
    while body:
        member = zlib.decompressobj(_GZIP)  # a body may be several, one after the other
        waiting = body
        while not member.eof:
            try:
                piece = member.decompress(waiting, _PIECE)
            except zlib.error as error:
                raise malformed(f"the body is not gzip: {error}") from None
            waiting = member.unconsumed_tail
            if not piece and not waiting and not member.eof:
                raise malformed("the gzip of the body ends too early")
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            pieces.append(piece)
        body = member.unused_data
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
