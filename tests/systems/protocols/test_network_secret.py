"""A network's secret: where it is read from, and what its certificates prove."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography.x509 import load_der_x509_certificate

from tidings.errors import TidingsError
from tidings.systems.protocols.network_secret import NodeIdentity, StrangerError, read_secret

SECRET, OTHER = b"the secret of a network of nodes", b"another secret of another network"
WITHIN_S = 60.0


def written(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_secret_is_read_without_the_white_space_around_it(tmp_path: Path) -> None:
    assert read_secret(written(tmp_path, b"\n" + SECRET + b" \r\n")) == SECRET


@pytest.mark.parametrize("content", [b"", b"hunter2\n", SECRET[:31], b" " * 40, b"x" * 4_097, b"x" * 100_000])
def test_a_secret_that_is_too_short_or_too_long_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(TidingsError, match=r"32 to 4,096 bytes.* make one, the same for every node: \(umask 077"):
        read_secret(written(tmp_path, content))


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602, 0o666])
def test_a_secret_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(TidingsError, match="chmod 600"):
        read_secret(written(tmp_path, SECRET, mode))


def test_a_secret_that_the_group_may_read_is_taken(tmp_path: Path) -> None:
    assert read_secret(written(tmp_path, SECRET, 0o640)) == SECRET


def test_a_secret_that_is_not_there_is_an_error_that_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(TidingsError, match="No such file or directory; make one"):
        read_secret(tmp_path / "secret")


async def meet(server: NodeIdentity, client: NodeIdentity, address: str) -> tuple[object, object, ssl.SSLObject | None]:
    """What the two sides of a connection make of each other, and the TLS between them."""
    seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            secured = await server.accept(writer, WITHIN_S)
            seen.set_result(secured.address)
            secured.writer.transport.abort()
        except OSError as error:
            seen.set_result(error)
        writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    found, spoken = None, None
    try:
        secured = await client.connect(writer, address, WITHIN_S)
        spoken = secured.writer.get_extra_info("ssl_object")
    except OSError as error:
        found = error
    writer.transport.abort()
    accepted = await seen
    listening.close()
    return accepted, found, spoken


def test_two_nodes_with_one_secret_learn_each_other_s_address_over_tls_1_3() -> None:
    server, client = NodeIdentity(SECRET, "10.0.0.1:7000"), NodeIdentity(SECRET, "[2001:db8::1]:7000")
    accepted, found, spoken = asyncio.run(meet(server, client, "10.0.0.1:7000"))
    assert (accepted, found) == ("[2001:db8::1]:7000", None)
    assert spoken is not None
    assert spoken.version() == "TLSv1.3"


def test_nodes_with_different_secrets_refuse_each_other() -> None:
    server, client = NodeIdentity(SECRET, "10.0.0.1:7000"), NodeIdentity(OTHER, "10.0.0.2:7000")
    accepted, found, _ = asyncio.run(meet(server, client, "10.0.0.1:7000"))
    assert isinstance(accepted, OSError)
    assert isinstance(found, StrangerError)
    assert str(found) == "it has another secret"


def test_a_node_that_is_not_the_one_at_the_address_is_refused() -> None:
    server, client = NodeIdentity(SECRET, "10.0.0.1:7000"), NodeIdentity(SECRET, "10.0.0.2:7000")
    _, found, _ = asyncio.run(meet(server, client, "10.0.0.1:7001"))
    assert isinstance(found, StrangerError)
    assert "10.0.0.1:7000" in str(found)


def test_two_starts_of_a_node_share_no_key() -> None:
    """A key that is stolen from a process is worth nothing without it once it has ended."""
    client, seen = NodeIdentity(SECRET, "10.0.0.2:7000"), set()
    for _ in range(2):
        _, _, spoken = asyncio.run(meet(NodeIdentity(SECRET, "10.0.0.1:7000"), client, "10.0.0.1:7000"))
        assert spoken is not None
        seen.add(load_der_x509_certificate(spoken.getpeercert(binary_form=True) or b"").public_key().public_bytes_raw())
    assert len(seen) == 2
