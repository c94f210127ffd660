"""What a scenario finds wrong beside its history is a violation, not a note."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from .process import NotStartedError
from .run import KeptWriter, Run, Size
from .scenarios import expect_refusal


@dataclass
class Service:
    """What ends and starts as it is told to."""

    status: int = 0
    starts: bool = True

    def stop(self) -> int:
        return self.status

    def said(self, characters: int = 0) -> str:
        return "Traceback"

    def start(self, *, wait: bool) -> None:
        pass

    def wait_until_ready(self, seconds: float) -> None:
        if not self.starts:
            raise NotStartedError("the service ended with status 1:\nthe log is damaged")


@dataclass
class Receiver:
    bad_signatures: list[str] = field(default_factory=list)


def run_of(folder: Path, served: Service, receiver: Receiver | None = None) -> Run:
    parts: list[Any] = [served, Size(), KeptWriter(folder / "history.jsonl"), {}, {}, receiver or Receiver()]
    return cast(Run, Run(folder, *parts))


def test_an_exit_status_and_a_wrong_signature_are_violations(tmp_path: Path) -> None:
    run = run_of(tmp_path, Service(status=3), Receiver(["hook-1 at position 7"]))
    run.stop_service()
    assert [str(one) for one in run.wrong] == [
        "exit the service ended with status 3: Traceback",
        "signature hook-1 at position 7",
    ]
    run = run_of(tmp_path, Service())
    run.stop_service()
    assert run.wrong == []


def test_a_damaged_log_that_is_served_all_the_same_is_a_violation(tmp_path: Path) -> None:
    refusing, serving = run_of(tmp_path, Service(starts=False)), run_of(tmp_path, Service())
    expect_refusal(refusing)
    expect_refusal(serving)
    assert (refusing.wrong, len(refusing.notes)) == ([], 1)
    assert [str(one).partition(":")[0] for one in serving.wrong] == ["damage served with flipped bits"]
