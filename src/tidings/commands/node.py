"""`tidings node`: one node of a published system, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.commands import single_command
from tidings.commands.saturation_command import SaturationCommand
from tidings.commands.setting_options import Pairs, SettingsFile, read_settings
from tidings.commands.system_help import SystemCommand
from tidings.errors import DomainError, TidingsError
from tidings.model.domain import Domain, load_domains
from tidings.model.event_files import read_sample

if TYPE_CHECKING:
    from tidings.commands.node_place import Place
    from tidings.model.event import EventBatch
    from tidings.systems.overlay import NamedOverlay, PublicationLog
    from tidings.systems.protocols.process import NodeProcess

MAX_LINE = 2 << 20  # bytes of a request: any event that is taken fits, however it is written
READ = 1 << 16  # bytes at a time
MAX_UNREAD = 64 << 20  # bytes that wait for the client to read them
LAST_LINES_S = 2.0  # for them to be read when the node ends
Tell = Callable[[dict[str, Any]], None]

PATIENCE_S = 8.0  # until a node that cannot join says so: joining takes two or three seconds, and one retry


def node(
    system: Annotated[
        str,
        typer.Option("--system", metavar="NAME", help="The system: %NAMES%."),
    ],
    domain: Annotated[
        Path | None,
        typer.Option(
            "--domain", metavar="FILE", help="The events' attributes, in one domain or several; alike for every node."
        ),
    ] = None,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            "--sample",
            metavar="FILE",
            help="Events to place by better than by the declaration (Parquet, CSV, JSON), alike for every node; of "
            "several domains: NAME=FILE, repeatable.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="Where others find this node, if that is not where it listens."
        ),
    ] = None,
    join: Annotated[
        str | None, typer.Option("--join", metavar="HOST:PORT", help="A node that is there; without it, be the first.")
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file", metavar="FILE", help="The secret of the network: nodes prove that they have it, over TLS."
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="The file that keeps unfinished events over a crash (%LOG%)."),
    ] = None,
    queued: Annotated[
        bool,
        typer.Option("--queued", help="Keep notifications until they are polled (%QUEUE%)."),
    ] = False,
    on_saturation: Annotated[
        str | None,
        typer.Option(
            "--on-saturation",
            metavar="CMD",
            help="Run this when queues keep growing, to start another node; $TIDINGS_NODE is whom to join (%GROWTH%).",
        ),
    ] = None,
    settings: Pairs = None,
    settings_file: SettingsFile = None,
    pace: Annotated[
        float, typer.Option("--pace", min=0.01, max=10, help="Multiplies every period and timeout of the protocol.")
    ] = 1.0,
) -> None:
    """Run one node of a published system as a process.

    It reads requests from its input and writes what happens, one JSON object a line.

    Start one, then others that join it; type requests into any. SIGTERM or Ctrl-C hands over and leaves.

    \b
      tidings node --system bluedove --domain stocks.toml --listen 127.0.0.1:7000
      tidings node --system bluedove --domain stocks.toml --join 127.0.0.1:7000
      {"subscribe": "dear", "filter": "price > 8.30"}
      {"publish": {"symbol": "OTE", "price": 8.40}}
      {"unsubscribe": "dear"}
      {"poll": "dear", "limit": 10}      with --queued: events wait until they are asked for
      {"status": true}                   how many peers it has, and what it dropped and why

    \b
    XML is published as text, filters are paths, and no domain is needed:
      tidings node --system sonnet --listen 127.0.0.1:7000
      {"subscribe": "papers", "filter": "/rss/channel/item[author = 'A. Zhou']"}
      {"publish": "<rss><channel>…</channel></rss>"}

    \b
    Nodes on several machines share a secret, and are told where others find them. Without one they listen on loopback:
      tidings node --system bluedove --domain stocks.toml --secret-file secret --listen 10.0.0.1:7000
      tidings node --system bluedove --domain stocks.toml --secret-file secret --listen 0.0.0.0:7000
        --advertise node2.example.org:7000 --join 10.0.0.1:7000

    \b
    A file with several domains makes a network of each; requests then say "domain": "stocks".

    \b
    Settings, the parameters of the papers, with their defaults:
    %SETTINGS%
    """
    from tidings.commands.node_place import place_of
    from tidings.systems.overlay import overlay_named
    from tidings.systems.protocols.network_secret import read_secret

    logging.basicConfig(format="tidings: %(message)s", level=logging.WARNING)
    named = overlay_named(system)
    named = named.with_settings(read_settings(settings, settings_file, named.system.name))
    if on_saturation is not None and "growth" not in named.system.abilities:
        raise TidingsError(f"{named.name}: its nodes do not ask for another one; leave out --on-saturation")
    secret = None if secret_file is None else read_secret(secret_file)
    place = place_of(listen, advertise, has_secret=secret is not None)
    domains = _domains(named, domain)
    sampled = _samples(samples or [], domains)
    asyncio.run(_run(named, domains, sampled, place, join, secret, log, queued, pace, on_saturation))


def _domains(named: NamedOverlay, file: Path | None) -> list[Domain]:
    from tidings.filter.xpath_dialect import DOMAIN as DOCUMENT_DOMAIN

    if named.system.needs == "documents":
        if file is not None:
            raise DomainError(f"{named.name}: events are XML documents, which need no domain; leave out --domain")
        return [DOCUMENT_DOMAIN]
    if file is None:
        raise DomainError(f"{named.name}: a node needs the domain of its events; give its file with --domain")
    domains = load_domains(file)
    if not domains:
        raise DomainError(f"{file}: the file has no domain; a node needs one, with attributes to place by")
    return list(domains.values())


def _samples(given: list[str], domains: list[Domain]) -> dict[str, EventBatch]:
    """Returns samples of events by the names of their domains."""
    known = {domain.name: domain for domain in domains}
    found = {}
    for one in given:
        name, _, file = one.partition("=") if len(domains) > 1 else (domains[0].name, "", one)
        if name not in known or not file:
            raise DomainError(f"--sample {one}: write the name of a domain and its file, {domains[0].name}=FILE")
        found[name] = read_sample(Path(file), known[name])
    return found


async def _run(
    named: NamedOverlay,
    domains: list[Domain],
    samples: dict[str, EventBatch],
    place: Place,
    join: str | None,
    secret: bytes | None,
    log: Path | None,
    queued: bool,
    pace: float,
    on_saturation: str | None,
) -> None:
    from tidings.systems.protocols.link import split_address
    from tidings.systems.protocols.many_domains import codec_of, node_of
    from tidings.systems.protocols.network_secret import NodeIdentity
    from tidings.systems.protocols.process import NodeProcess
    from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

    if join is not None:
        split_address(join)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    running: list[NodeProcess] = []
    server = await _listening(place, lambda reader, writer: running[0].serve(reader, writer))
    address = place.address(server.sockets[0].getsockname()[1])
    identity = None if secret is None else NodeIdentity(secret, address)
    made = node_of(
        named,
        hashed(address, ADDRESS_BITS),
        domains,
        Random(),
        _logs(log, len(domains) > 1),
        queued=queued,
        clock=time.perf_counter,
        samples=samples,
    )
    for note in made.notes:
        typer.echo(f"tidings: {note.chosen}", err=True)
        for warning in note.warnings:
            typer.echo(f"tidings: warning: {warning}", err=True)
    ready = asyncio.Event()
    output = Output()
    grow = SaturationCommand(on_saturation) if on_saturation is not None else None

    def tell(what: dict[str, Any]) -> None:
        if "ready" in what:
            ready.set()
        if "saturated" in what and grow is not None:
            grow.run(address)
        if not output.put(what):
            process.drops.note(
                "client does not read", f"{MAX_UNREAD:,} bytes wait for it; {next(iter(what))} is dropped"
            )

    process = NodeProcess(
        made, address, codec_of(named), tell, pace=pace, host_of=named.overlay.host_of, identity=identity
    )
    running.append(process)
    contact = process.know(join) if join is not None else None
    process.start(contact)
    threading.Thread(target=_read_requests, args=(loop, process.on_line, tell), daemon=True).start()
    complaints = None
    if join is not None:
        complaints = loop.create_task(_complain_until(ready, named.name, join, PATIENCE_S * pace))
    await ended.wait()
    if complaints is not None:
        complaints.cancel()
    server.close()
    await process.stop()
    output.close()


def _logs(file: Path | None, several: bool) -> Callable[[Domain], PublicationLog]:
    """What gives each domain its log: in memory, in the file, or in one beside it where there are several domains."""
    from tidings.systems.overlay import MemoryLog
    from tidings.systems.protocols.process import FileLog

    def log_of(domain: Domain) -> PublicationLog:
        if file is None:
            return MemoryLog()
        return FileLog(file.with_name(f"{file.stem}.{domain.name}{file.suffix}") if several else file)

    return log_of


async def _listening(place: Place, serve: Callable[..., Coroutine[Any, Any, None]]) -> asyncio.Server:
    try:
        return await asyncio.start_server(serve, place.hosts, place.port)
    except OSError as error:
        where = f"{', '.join(place.hosts)}, port {place.port}"
        raise TidingsError(f"cannot listen at {where}: {error.strerror or error}; give another --listen") from None


async def _complain_until(ready: asyncio.Event, system: str, join: str, every_s: float) -> None:
    """Nodes try to join for ever: the other may only be late. But somebody should be told what they wait for."""
    while not ready.is_set():
        try:
            await asyncio.wait_for(ready.wait(), every_s)
        except TimeoutError:
            typer.echo(
                f"tidings: {join} has not let this node join yet; is a node of the system {system} running there, "
                "with the same --domain, --sample, settings and --secret-file, and is that where others find it?",
                err=True,
            )


def _read_requests(loop: asyncio.AbstractEventLoop, request: Callable[[str], None], tell: Tell) -> None:
    """Lines of the input, whatever it is, until it ends; a node without a client goes on all the same."""
    taken = threading.Event()

    def take(line: bytes) -> None:
        if len(line) > MAX_LINE:
            tell({"error": f"a request has more than {MAX_LINE:,} bytes; it is left out"})
        else:
            request(line.decode("utf-8", "replace"))
        taken.set()

    with contextlib.suppress(RuntimeError):  # the loop has ended
        for line in _lines_of_input():
            if line.strip():
                taken.clear()
                loop.call_soon_threadsafe(take, line)
                taken.wait()  # one at a time: a file may be longer than what there is memory for


def _lines_of_input() -> Iterator[bytes]:
    """By reading the descriptor: a thread that waits in `sys.stdin` when the process ends cannot let go of it."""
    left = b""
    while read := os.read(0, READ):
        *lines, left = (left + read).split(b"\n")
        yield from lines
        if len(left) >= MAX_LINE:  # no more of it is kept than shows that it is too long
            left = left[: MAX_LINE + 1]
    yield left


class Output:
    """Lines for the client, written by a thread: a client that does not read must not stop a node of a network."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, what: dict[str, Any]) -> bool:
        """Whether there was room for it."""
        line = json.dumps(what, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._bytes + len(line) > MAX_UNREAD:
                return False
            self._bytes += len(line)
            self._lines.append(line)
            self._changed.notify()
        return True

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the client is gone, and the node goes on without it
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._lines or self._ended)
                    if not self._lines:
                        return
                    line = self._lines.popleft()
                left = memoryview(line)
                while left:
                    left = left[os.write(1, left) :]
                with self._changed:
                    self._bytes -= len(line)

    def close(self) -> None:
        """Wait a moment for what is not written yet."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(LAST_LINES_S)


app = single_command(node, SystemCommand)
