"""Machine code is kept for other processes, and nobody is given another's."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.waiting import LAST_RESORT_SECONDS

from tidings.kernels import decorator as first_use
from tidings.kernels import decorator as kernel_module
from tidings.kernels.decorator import SAID_FOR_SECONDS, Notice, kernel

KERNELS = """
from tidings.kernels.decorator import kernel

@kernel
def first(numbers):
    return numbers[0] + 1

@kernel
def twice_the_first(numbers):
    return first(numbers) * 2
"""
TYPES = "int8", "int32", "int64", "float32", "float64", "bool"


def _run(folder: Path, code: str) -> subprocess.Popen[str]:
    code = f"import numpy as np, kernels\n{code}"
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    return tmp_path


def test_processes_that_compile_at_once_never_mix_up_signatures(folder: Path) -> None:
    compiling = [_run(folder, f"kernels.first(np.ones(2, '{kind}'))") for kind in TYPES]
    assert [process.wait(LAST_RESORT_SECONDS) for process in compiling] == [0] * len(TYPES)
    assert len(list(folder.rglob("*first*.nbc"))) == len(TYPES)
    asked = f"print([int(kernels.twice_the_first(np.ones(2, kind))) for kind in {TYPES}], kernels.first.stats)"
    answer, _ = _run(folder, asked).communicate(timeout=LAST_RESORT_SECONDS)
    assert answer.startswith(f"{[4] * len(TYPES)}")
    assert "cache_misses={}" in answer.replace("Counter()", "{}")  # all were found


def test_a_file_has_its_own_signature_whatever_another_process_saves_in_between(folder: Path) -> None:
    def files() -> Any:
        return kernel_module._Files(str(folder), "f", "stamp")

    files().save("one signature", 1)
    files().save("another", 2)
    assert (files().load("one signature"), files().load("another"), files().load("a third")) == (1, 2, None)


def test_a_damaged_file_is_rebuilt_and_an_unwritable_one_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    first = importlib.import_module("kernels").first
    first(np.ones(2))
    (kept,) = folder.rglob("*first*.nbc")
    whole = kept.read_bytes()
    for left in b"", whole[:100]:
        kept.write_bytes(left)
        assert kernel(first.py_func)(np.ones(2)) == 2.0
        assert len(kept.read_bytes()) > 100

    def full(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(kernel_module._Files, "save", full)
    assert kernel(first.py_func)(np.ones(2, np.int8)) == 2


def test_nothing_is_taken_from_before_a_source_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    first = importlib.import_module("kernels").first
    first(np.ones(2))
    for sources, hits in (kernel_module._sources(), 1), ("another kernel was changed", 0):
        monkeypatch.setattr(kernel_module, "_sources", lambda sources=sources: sources)
        again = kernel(first.py_func)
        assert again(np.ones(2)) == 2.0
        assert len(again.stats.cache_hits) == hits


def test_a_function_of_no_file_and_no_module_is_compiled_and_not_kept() -> None:
    assert first_use.Notice  # hears of it too
    namespace: dict[str, Any] = {}
    exec(KERNELS, namespace)
    assert namespace["twice_the_first"](np.ones(2)) == 4.0


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


def test_that_kernels_were_compiled_is_forgotten_when_a_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_module, "_folder", lambda: tmp_path / "new")
    assert not kernel_module.were_compiled()
    kernel_module.say_compiled()
    assert kernel_module.were_compiled()
    monkeypatch.setattr(kernel_module, "_sources", lambda: "other sources")
    assert not kernel_module.were_compiled()
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernel_module, "_folder", lambda: tmp_path / "file")
    kernel_module.say_compiled()  # where nothing can be written
    assert not kernel_module.were_compiled()
