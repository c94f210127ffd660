from __future__ import annotations

from pathlib import Path

import pytest

from tidings.commands.saturation_command import SaturationCommand


def test_the_command_is_run_with_the_address_to_join(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "joined"
    command = SaturationCommand(f'echo "$TIDINGS_NODE" >> {written}; echo started')
    command.run("127.0.0.1:7000")
    command.run("127.0.0.1:7000")
    assert command.wait() == [0, 0]
    assert written.read_text() == "127.0.0.1:7000\n" * 2
    assert capfd.readouterr().out == ""  # a node's output is read by its client


def test_a_command_that_fails_does_not_fail_the_node() -> None:
    command = SaturationCommand("exit 3")
    command.run("127.0.0.1:7000")
    assert command.wait() == [3]
