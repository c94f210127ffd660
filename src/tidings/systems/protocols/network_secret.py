"""The secret that the nodes of a network share, and how they prove it to each other: TLS 1.3 with certificates.

The secret is the key of an authority that nobody has to run: every node derives the same one, and issues with it, when
it starts, a certificate for a key of its own. Both sides of a connection demand such a certificate.

    secret file ─► scrypt ─► the network's key (Ed25519) ─► its certificate, the only one that is trusted
                                      │ signs
    address, a new key ───────────────┴─► the node's certificate, for tidings://host:port

So a node that completes a handshake has the secret. TLS binds the proof to this connection and to this side of it: what
was recorded, sent back or passed on under other certificates proves nothing. The address in the certificate says which
node it is, so that a connection that was led to another node is refused as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from tidings.errors import TidingsError
from tidings.extras import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.x509 import ExtensionType

SECRET_MIN, SECRET_MAX = 32, 4_096  # bytes
SALT = b"tidings: the secret of a network, 1"
SCHEME = "tidings://"
FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280: no end
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"}
HOW_TO_MAKE = "make one, the same for every node: (umask 077; head -c 32 /dev/urandom | base64 > secret)"


class StrangerError(OSError):
    """The peer of a connection has not proved that it has the secret, or is not who it should be."""


def read_secret(path: Path) -> bytes:
    """The secret in a file, without the white space around it; raises TidingsError if it is too short or public."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            secret = file.read(SECRET_MAX + 1).strip()
    except OSError as error:
        raise TidingsError(f"{path}: cannot read the secret: {error.strerror or error}; {HOW_TO_MAKE}") from None
    if mode & 0o027:
        raise TidingsError(f"{path}: others may read or change the secret; take that from them: chmod 600 {path}")
    if not SECRET_MIN <= len(secret) <= SECRET_MAX:
        raise TidingsError(
            f"{path}: a secret has {SECRET_MIN} to {SECRET_MAX:,} bytes, not {len(secret)}; {HOW_TO_MAKE}"
        )
    return secret


class Secured(NamedTuple):
    """A connection whose two sides have proved who they are, with the streams over TLS."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str  # of the peer
    opened: asyncio.StreamWriter  # the streams beneath, which close the connection when they are forgotten


class NodeIdentity:
    """Who a node is: its address, with a certificate that only those who have the secret can issue."""

    def __init__(self, secret: bytes, address: str) -> None:
        require("cryptography")
        self.address = address
        issued = _issue(secret, address)
        self._accepting = _context(ssl.PROTOCOL_TLS_SERVER, issued)
        self._connecting = _context(ssl.PROTOCOL_TLS_CLIENT, issued)

    async def accept(self, opened: asyncio.StreamWriter, within_s: float) -> Secured:
        """Start TLS on a connection that a peer has opened, and that nothing was read of; raises StrangerError."""
        return await _secured(opened, self._accepting, within_s, server_side=True)

    async def connect(self, opened: asyncio.StreamWriter, address: str, within_s: float) -> Secured:
        """Start TLS on a connection to the node at an address; raises StrangerError."""
        secured = await _secured(opened, self._connecting, within_s, server_side=False)
        if secured.address != address:
            secured.writer.transport.abort()
            raise StrangerError(f"the node there is {secured.address}; use that address")
        return secured


async def _secured(
    opened: asyncio.StreamWriter, context: ssl.SSLContext, within_s: float, *, server_side: bool
) -> Secured:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        async with asyncio.timeout(within_s):
            transport = await loop.start_tls(opened.transport, protocol, context, server_side=server_side)
    except ssl.SSLCertVerificationError:
        raise StrangerError("it has another secret") from None
    except ssl.SSLError as error:
        raise StrangerError(_reason(error)) from None
    except TimeoutError:
        raise StrangerError(f"it has not proved in {within_s:g} s that it has the secret") from None
    if transport is None:
        raise ConnectionResetError("the connection was closed before the handshake was complete")
    protocol.connection_made(transport)
    address = _address_in(transport.get_extra_info("peercert") or {})
    return Secured(reader, asyncio.StreamWriter(transport, protocol, reader, loop), address, opened)


def _address_in(certificate: dict[str, Any]) -> str:
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "URI" and name.startswith(SCHEME):
            return str(name.removeprefix(SCHEME))
    raise StrangerError("its certificate is not of a node")


def _reason(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason in NO_TLS:
        return "it does not speak TLS; it may have no secret"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it has no certificate of the network"
    return f"the handshake failed: {reason.lower().replace('_', ' ')}"


class _Issued(NamedTuple):
    """A node's certificate, as `ssl` takes it."""

    authority: str  # the network's certificate, as PEM
    chain: bytes  # the node's certificate and its key, as PEM
    password: str  # of the key


def _issue(secret: bytes, address: str) -> _Issued:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    network = Ed25519PrivateKey.from_private_bytes(
        hashlib.scrypt(secret, salt=SALT, n=1 << 15, r=8, maxmem=64 << 20, dklen=32, p=1)
    )
    own = Ed25519PrivateKey.generate()
    authority = _certificate(network, network.public_key(), "a network of Tidings", is_authority=True)
    named = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(SCHEME + address)])
    certificate = _certificate(network, own.public_key(), "a node of Tidings", named)
    password = token_hex(32)
    key = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    return _Issued(authority.decode(), certificate + key, password)


def _certificate(
    issuer: Ed25519PrivateKey, key: Ed25519PublicKey, name: str, *more: ExtensionType, is_authority: bool = False
) -> bytes:
    """A certificate for a key, as PEM, with all that a strict verifier asks for."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    usages = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
              "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    allowed = "key_cert_sign" if is_authority else "digital_signature"
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named("a network of Tidings"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(UNTIL)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.KeyUsage(**{usage: usage == allowed for usage in usages}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer, None).public_bytes(Encoding.PEM)


def _context(protocol: int, issued: _Issued) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the address is checked, with its port
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=issued.authority)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nothing is resumed: every connection is proved
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # `ssl` reads a key from a file only
        file.write(issued.chain)
        file.flush()
        context.load_cert_chain(file.name, password=issued.password)
    return context
