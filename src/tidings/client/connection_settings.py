"""Where the service is and which token to send (arguments, then the environment, then a local file), and retries."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidings.errors import TidingsError

DEFAULT_URL = "http://127.0.0.1:8080"
LOCAL_TOKEN = Path("tidings-data") / "token"  # of a service started in the same folder
BUSY = frozenset({429, 503})  # the service did nothing yet, and says so


@dataclass(frozen=True)
class ConnectionSettings:
    """A service, and who speaks to it."""

    url: str
    token: str | None
    local: bool  # the service is on this machine, where no proxy can be meant

    @classmethod
    def find(cls, url: str | None, token: str | None, token_file: str | os.PathLike[str] | None) -> ConnectionSettings:
        """Arguments win over TIDINGS_URL, TIDINGS_TOKEN and TIDINGS_TOKEN_FILE, and those over what is usual."""
        chosen = (url or os.environ.get("TIDINGS_URL") or DEFAULT_URL).rstrip("/")
        local = _is_local(chosen)
        if token is None and token_file is None:
            token = os.environ.get("TIDINGS_TOKEN") or None
            token_file = os.environ.get("TIDINGS_TOKEN_FILE") or None
        if token is None and token_file is not None:
            token = _read(Path(token_file))
        if token is None and local and LOCAL_TOKEN.is_file():  # never sent to another machine
            token = _read(LOCAL_TOKEN)
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
            raise TidingsError("token: a token is one word, and this has other characters; copy it again")
        return cls(chosen, token, local)


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TidingsError(f"url: {url!r} is no address of a service; write one such as {DEFAULT_URL}")
    if parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise TidingsError(f"token: cannot read {path}: {reason}") from None


@dataclass(frozen=True)
class Retries:
    """How long one request is tried again before its error is the caller's."""

    for_seconds: float = 60.0  # since the first attempt; 0 tries once
    first_seconds: float = 0.1
    longest_seconds: float = 10.0

    def pause(self, attempt: int, *, elapsed: float, asked: float | None, chance: float) -> float | None:
        """Seconds to wait after this attempt (from 1), or None to give up; `chance` is a draw from [0, 1).

        >>> Retries().pause(3, elapsed=1.0, asked=None, chance=0.5)
        0.30000000000000004
        >>> Retries().pause(1, elapsed=1.0, asked=5.0, chance=0.0)
        5.0
        >>> Retries(for_seconds=0).pause(1, elapsed=0.0, asked=None, chance=0.0)
        """
        if self.for_seconds <= 0:
            return None
        widest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 60))
        drawn = widest * (0.5 + chance / 2)  # half of it certain, so that a restart is not hammered
        pause = drawn if asked is None else asked + drawn - widest / 2
        return pause if elapsed + pause <= self.for_seconds else None
