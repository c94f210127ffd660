"""Where a node listens, and where others find it."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import NamedTuple

from tidings.errors import TidingsError
from tidings.systems.protocols.link import split_address
from tidings.systems.protocols.network_secret import HOW_TO_MAKE


class Place(NamedTuple):
    """The addresses to listen at, and the one that others are told."""

    hosts: tuple[str, ...]  # as numbers
    port: int  # 0: a free one
    told: str  # the host
    told_port: int  # 0: the port that is listened at

    def address(self, port: int) -> str:
        """The address that others are told, if this is the port that is listened at."""
        return f"{self.told}:{self.told_port or port}"


def place_of(listen: str, advertise: str | None, *, has_secret: bool) -> Place:
    """Where to listen, and what to tell others; raises TidingsError where strangers could connect, or nobody could."""
    host, _, _ = listen.rpartition(":")
    hosts, port = _resolved(listen)
    if not has_secret and not all(ip_address(each).is_loopback for each in hosts):
        raise TidingsError(
            f"--listen {listen}: a node without a secret would trust everybody who connects, so that it listens on "
            f"loopback only (127.0.0.1); give every node the same --secret-file to listen elsewhere; {HOW_TO_MAKE}"
        )
    told, told_port = host, 0
    if advertise is not None:
        told, _, _ = advertise.rpartition(":")
        _, told_port = split_address(advertise)
    if _is_every(told):
        raise TidingsError(
            f"{told} is no address at which others find this node; say under which they do: --advertise HOST:PORT"
        )
    return Place(hosts, port, told, told_port)


def _resolved(listen: str) -> tuple[tuple[str, ...], int]:
    host, port = split_address(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TidingsError(f"cannot listen at {listen}: {error.strerror or error}; give another --listen") from None
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found)), port


def _is_every(host: str) -> bool:
    """Whether this stands for all addresses of a machine."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False
