"""The command that an operator gives a node to run when the network needs another one."""

from __future__ import annotations

import os
import subprocess
import sys

NODE = "TIDINGS_NODE"  # where the command finds the address to join


class SaturationCommand:
    """Runs a command of the shell, apart from the node: it may well be the new node itself."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, address: str) -> None:
        self._started = [one for one in self._started if one.poll() is None]
        self._started.append(
            subprocess.Popen(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # the node's own output is its client's
                env=os.environ | {NODE: address},
                start_new_session=True,  # what ends the node does not end the new one
            )
        )

    def wait(self) -> list[int]:
        """Wait until all that is running has ended; returns how."""
        return [one.wait() for one in self._started]
