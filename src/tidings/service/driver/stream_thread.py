"""A thread that keeps a stream running: tried again with back-off, whatever goes wrong.

    opening ─► running ─► (it has to be another) ─► opening
       │          │
       └──────────┴─► failed ─► (after a while) ─► opening

What goes wrong in one stream stays there: it is reported in the driver's status.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

from tidings.errors import TidingsError

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 30.0
HEALTHY_SECONDS = 60.0  # after which a failure counts as a first one

_log = logging.getLogger("tidings.service")


class StreamThread(ABC):
    """Serves from `start` until `stop`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._told = threading.Event()
        self._stopped = threading.Event()
        self._problem: str | None = None
        self._state, self._since = "opening", time.time()
        self._failures = 0  # one after the other
        self._thread = threading.Thread(target=self._run, name=f"tidings-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End; what the query was at is matched again when it is started again, with the same outcome."""
        self._stopped.set()
        self._told.set()

    def join(self) -> None:
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _enter(self, state: str) -> None:
        if state != self._state:
            self._state, self._since = state, time.time()

    @property
    @abstractmethod
    def has_matched(self) -> bool:
        """Whether this driver has matched any event in it."""

    @abstractmethod
    def _serve(self) -> None:
        """Until told to stop, or until the stream has to be another."""

    @abstractmethod
    def _mend(self) -> None:
        """Called before each further try: remove what made the stream fail, if that can be found."""

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                if self._failures:
                    self._mend()
                self._serve()
                self._failures = 0
                continue
            except TidingsError as error:
                self._problem = str(error)
                _log.error("%s: %s", self.name, error)
            except Exception as error:  # a bug, or Spark itself: the other streams go on
                self._problem = f"{type(error).__name__}: {error}"
                _log.exception("%s: the stream failed", self.name)
            self._enter("failed")
            self._failures = 1 if time.monotonic() - began > HEALTHY_SECONDS else self._failures + 1
            self._stopped.wait(min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2 ** (self._failures - 1)))
        self._enter("stopped")
