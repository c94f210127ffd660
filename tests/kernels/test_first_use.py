"""That kernels are being compiled is said by one process for all."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidings.kernels.first_use import SAID_FOR_SECONDS, Notice


def compiling(module: str) -> Any:
    function = SimpleNamespace(__module__=module)
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def said(capsys: pytest.CaptureFixture[str], notice: Notice, module: str = "tidings.matching.index") -> int:
    """How often a process says it that compiles two kernels."""
    for _ in range(2):
        notice.on_start(compiling(module))
        notice.on_end(compiling(module))
    return capsys.readouterr().err.count("compiles its kernels")


def test_of_several_processes_the_first_that_compiles_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [said(capsys, Notice(tmp_path / "cache")) for _ in range(3)] == [1, 0, 0]


def test_it_is_said_again_after_a_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, Notice(tmp_path)) == 1
    (mark,) = tmp_path.iterdir()
    long_ago = time.time() - SAID_FOR_SECONDS - 1
    os.utime(mark, (long_ago, long_ago))
    assert [said(capsys, Notice(tmp_path)) for _ in range(2)] == [1, 0]


def test_where_no_file_can_be_written_each_process_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert [said(capsys, Notice(tmp_path / "file")) for _ in range(2)] == [1, 1]


def test_what_others_compile_is_their_business(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, Notice(tmp_path), "somebody.else") == 0
