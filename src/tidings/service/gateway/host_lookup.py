"""Where the names of hosts lead to: looked up in bounded time, and in threads that nobody else waits for.

A lookup cannot be broken off, and a name server that says nothing keeps it for half a minute or more. So each has a
thread of its own, there are only so many, and those are shared fairly by who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any

from tidings.service.gateway.fair_shares import Shares
from tidings.service.gateway.security import may_be_sent_to


class Resolver:
    """Looks up hosts; belongs to one event loop."""

    def __init__(self, *, seconds: float, at_once: int, development: bool) -> None:
        self._seconds = seconds
        self._shares = Shares(at_once)
        self._development = development
        self._under_way: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str, port: int, *, who: str) -> list[str]:
        """The addresses of a host, all of which may be sent to; `OSError` where that is not so, or not known in time.

        One that may not is enough to refuse: who answers with both hopes that the other is tried.
        """
        looking = self._under_way.get((host, port)) or self._look_up(host, port, who)
        try:
            found = await asyncio.wait_for(asyncio.shield(looking), self._seconds)
        except TimeoutError:
            raise OSError(
                f"the host {host} cannot be found: no name server answered within {self._seconds:g} s"
            ) from None
        except OSError as error:
            raise OSError(f"the host {host} cannot be found: {error.strerror or error}") from None
        addresses = list(dict.fromkeys(found))
        if not addresses:
            raise OSError(f"the host {host} has no address")
        for address in addresses:
            if not may_be_sent_to(ipaddress.ip_address(address), development=self._development):
                raise OSError(f"the host {host} is at {address}, which is not a public address")
        return addresses

    def _look_up(self, host: str, port: int, who: str) -> asyncio.Future[list[str]]:
        if not self._shares.has_room(who):
            raise OSError(f"the host {host} cannot be looked up now: too many other lookups have no answer yet")
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[list[str]] = loop.create_future()
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to ask
        self._under_way[host, port] = looking
        self._shares.take(who)

        def done(answer: Callable[[Any], None], value: Any) -> None:
            self._shares.give_back(who)
            del self._under_way[host, port]
            answer(value)

        def work() -> None:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
                answer: tuple[Callable[[Any], None], Any] = (
                    looking.set_result,
                    [str(entry[4][0]).partition("%")[0] for entry in found],
                )
            except Exception as error:  # whatever it is, nobody may wait for ever
                answer = (looking.set_exception, error if isinstance(error, OSError) else OSError(str(error)))
            with contextlib.suppress(RuntimeError):  # the service has stopped meanwhile
                loop.call_soon_threadsafe(done, *answer)

        threading.Thread(target=work, name=f"tidings-dns {host}", daemon=True).start()
        return looking
