"""The gateway's process: `python -m tidings.service.gateway.gateway_process DIR --host 127.0.0.1 --port 8080`.

Ends on SIGTERM and SIGINT: streams and long polls end, what is being appended is answered, and the log is closed.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn

from tidings.errors import TidingsError
from tidings.service.data.data_directory import CATALOGUE, DEFAULT_DATA, LOG, DataDirectory
from tidings.service.data.private_files import be_private
from tidings.service.gateway.app import create_app
from tidings.service.gateway.connections import GatewayConfig
from tidings.service.gateway.gateway_context import Context
from tidings.service.gateway.gateway_settings import LOOPBACK_HOSTS, Settings, read_limits, read_quotas
from tidings.service.gateway.security import check_bind

FILES = 4096  # open files besides connections: three for each domain's mailboxes
STOP_SECONDS = 10  # that requests under way have before they are cancelled


class _Server(uvicorn.Server):
    """Ends long polls and streams before it waits for open requests: those would stay open forever."""

    async def on_tick(self, counter: int) -> bool:
        # After the disk failed under the log, only reopening it shows what is kept: the supervisor restarts us.
        context = self._context()
        if context is not None and self.broken:
            context.close()
            return True
        return await super().on_tick(counter)

    @property
    def broken(self) -> bool:
        context = self._context()
        return context is not None and context.publisher.broken is not None

    def _context(self) -> Context | None:
        context = getattr(getattr(self.config.app, "state", None), "context", None)
        return context if isinstance(context, Context) else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is loaded now stays. To search it for garbage again and again would cost a tenth of the time.
        gc.collect()
        gc.freeze()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        context = self._context()
        if context is not None:
            context.close()
        super().handle_exit(sig, frame)


class _Reasons(logging.Filter):
    """Logs only the reason why a gateway cannot start, without the framework's stack trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage().strip()
        raised = re.fullmatch(r"tidings\.[\w.]+: (.*)", message.rpartition("\n")[2])
        if message.startswith("Traceback ") and raised is not None:
            record.msg, record.args = raised[1], ()
        return True


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal that was already handled."""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tidings.service.gateway.gateway_process", description=__doc__)
    parser.add_argument("data", nargs="?", default=DEFAULT_DATA, help="the data directory")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=8080, help="the port to listen at; 0 takes a free one")
    described = f"a PostgreSQL URL; without, and without {CATALOGUE}, a file in the data directory"
    parser.add_argument("--catalogue", default=os.environ.get(CATALOGUE), help=described)
    described = f"kafka://host:port/topic; without, and without {LOG}, files in the data directory"
    parser.add_argument("--log", default=os.environ.get(LOG), help=described)
    parser.add_argument("--certificate", help="the file of a TLS certificate")
    parser.add_argument("--key", help="the file of its key")
    parser.add_argument("--allow-host", action="append", default=[], help="a name that requests may be addressed to")
    parser.add_argument("--dev-webhooks", action="store_true", help="let webhooks go to this machine, by http too")
    parser.add_argument("--max-lag", type=int, help="events of a domain that may wait to be matched")
    parser.add_argument("--retain", action="append", help="how long events are kept, as 7d, 50gb or forever")
    parser.add_argument("--quotas", type=Path, help="a TOML file with what tenants may have")
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    return parser


def settings_of(given: argparse.Namespace) -> Settings:
    names = {given.host.strip("[]").lower(), *(name.lower() for name in given.allow_host)} - {"0.0.0.0", "::"}
    settings = Settings(
        hosts=frozenset(LOOPBACK_HOSTS | names),
        dev_webhooks=given.dev_webhooks,
        catalogue=given.catalogue,
        log=given.log,
    )
    if given.max_lag is not None:
        settings = replace(settings, max_lag_events=given.max_lag)
    if given.quotas is not None:
        settings = replace(settings, quotas=read_quotas(given.quotas))
    if given.retain:
        settings = replace(settings, retain=read_limits(given.retain))
    return settings


def with_descriptors(settings: Settings) -> Settings:
    """Returns settings with no more connections than there can be open files, after raising that limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    service = settings.quotas.service
    room = max(hard - FILES, hard // 2)
    if hard == resource.RLIM_INFINITY or service.max_connections <= room:
        return settings
    logging.getLogger(__name__).warning(
        "max_connections is %d, not %d: this process may have %d open files (ulimit -n)",
        room,
        service.max_connections,
        hard,
    )
    service = replace(service, max_connections=room)
    return replace(settings, quotas=replace(settings.quotas, service=service))


def main(argv: Sequence[str] | None = None) -> int:
    be_private()
    given = arguments().parse_args(argv)
    logging.basicConfig(level=given.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        # A gateway always has a token: it creates the first one itself.
        check_bind(given.host, tls=bool(given.certificate and given.key), token=True)
        app = create_app(DataDirectory(given.data), with_descriptors(settings_of(given)))
        config = GatewayConfig(
            app,
            host=given.host,
            port=given.port,
            loop="uvloop" if sys.platform != "win32" else "asyncio",
            ws="none",
            lifespan="on",
            access_log=False,
            log_level=given.log_level,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            ssl_certfile=given.certificate,
            ssl_keyfile=given.key,
            timeout_graceful_shutdown=STOP_SECONDS,
            backlog=4096,
        )
        logging.getLogger("uvicorn.error").addFilter(_Reasons())
        server = _Server(config)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _nothing)  # uvicorn raises again the signal that ended it, which is no failure
        server.run()
    except TidingsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if server.started and not server.broken else 1


if __name__ == "__main__":
    sys.exit(main())
