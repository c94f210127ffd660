"""`tidings node`: one node of a published system, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import DomainError
from tidings.model.domain import Domain, load_domains

if TYPE_CHECKING:
    from tidings.overlay.process import NodeProcess

MAX_LINE = 1 << 20


def node(
    system: Annotated[str, typer.Option("--system", help="chord, opchord, digests, clusters or bluedove.")],
    domain: Annotated[
        Path, typer.Option("--domain", metavar="FILE", help="The events' attributes; the same for every node.")
    ],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    join: Annotated[
        str | None, typer.Option("--join", metavar="HOST:PORT", help="A node that is there; without it, be the first.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Where bluedove keeps events that are not done.")
    ] = None,
    pace: Annotated[
        float, typer.Option("--pace", min=0.01, max=10, help="Multiplies every period and timeout of the protocol.")
    ] = 1.0,
) -> None:
    """Run one node: it reads wishes from its input and writes what happens, a JSON object a line.

    Nodes trust whoever can reach them: listen on addresses that only they can reach.

    \b
      tidings node --system bluedove --domain stocks.toml --listen 127.0.0.1:7000
      tidings node --system bluedove --domain stocks.toml --join 127.0.0.1:7000
      {"subscribe": "dear", "filter": "price > 8.30"}
      {"publish": {"symbol": "OTE", "price": 8.40}}
    """
    domains = load_domains(domain)
    if len(domains) != 1:
        raise DomainError(f"{domain}: the file has {len(domains)} domains ({', '.join(domains)}); give a file of one")
    (only,) = domains.values()
    asyncio.run(_run(system, only, listen, join, log, pace))


async def _run(system: str, domain: Domain, listen: str, join: str | None, log: Path | None, pace: float) -> None:
    from tidings.overlay.bluedove import MemoryLog
    from tidings.overlay.codec import Codec
    from tidings.overlay.content import Content
    from tidings.overlay.launch import BITS, launch_of
    from tidings.overlay.process import NodeProcess, split_address
    from tidings.overlay.publication_log import FileLog
    from tidings.overlay.ring import hashed

    launch = launch_of(system)
    host, port = split_address(listen)
    contact = None
    if join is not None:
        split_address(join)
        contact = hashed(join, BITS)
    running: list[NodeProcess] = []
    server = await asyncio.start_server(lambda reader, writer: running[0].serve(reader, writer), host, port)
    address = f"{host}:{server.sockets[0].getsockname()[1]}"
    id = hashed(address, BITS)
    kept = FileLog(log) if log is not None else MemoryLog()
    made = launch.make(id, Content(domain), Random(), kept)
    process = NodeProcess(made, address, Codec(launch.messages), _tell, pace=pace)
    running.append(process)
    if join is not None and contact is not None:
        process.know(contact, join)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    process.start(contact)
    wishes = loop.create_task(_read_wishes(process.on_line))
    await ended.wait()
    wishes.cancel()
    server.close()
    await process.stop()


async def _read_wishes(wish: Callable[[str], None]) -> None:
    """Lines of the input, until it ends; a node without a client goes on all the same."""
    reader = asyncio.StreamReader(limit=MAX_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        if line.strip():
            wish(line.decode("utf-8", "replace"))


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what, ensure_ascii=False) + "\n")
    sys.stdout.flush()
