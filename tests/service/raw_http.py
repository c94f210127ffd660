"""HTTP as it should not be sent: a socket, and what comes back."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from tests.waiting import LAST_RESORT_SECONDS


class Raw:
    """A connection to a gateway on which anything can be written."""

    def __init__(self, gateway: Any, *, receive_buffer: int | None = None) -> None:
        address = urlsplit(gateway.url)
        self._token = gateway.token
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(LAST_RESORT_SECONDS)
        self._socket.connect((address.hostname, address.port))
        self._got = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def request(self, line: str, body: bytes = b"", *, token: bool = True, **headers: str) -> None:
        """Send a request; its length is as the headers say, else as it is."""
        given = {"Host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if token:
            given["Authorization"] = f"Bearer {self._token}"
        if body and not {"Content-Length", "Transfer-Encoding"} & set(given):
            given["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.send(f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        while b"\r\n\r\n" not in self._got:
            self._more()
        head, _, rest = self._got.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self._got = rest
        size = int(headers.get("content-length", 0))
        while len(self._got) < size:
            self._more()
        body, self._got = self._got[:size], self._got[size:]
        return int(first.split()[1]), headers, body

    def problem(self) -> dict[str, Any]:
        """The next answer, which is a problem."""
        status, headers, body = self.answer()
        assert headers["content-type"] == "application/problem+json", (status, headers, body)
        said: dict[str, Any] = json.loads(body)
        assert said["status"] == status
        assert said["type"].startswith("urn:tidings:problem:")
        assert said["title"]
        assert said["detail"]
        return said

    def _more(self) -> None:
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("closed by the gateway")
        self._got += piece

    def is_closed(self) -> bool:
        """Waits until the gateway closes the connection."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True
