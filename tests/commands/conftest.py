"""Commands run in this process, against a service that is only a stand-in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tidings.cli import app
from tidings.client import transport

from ..client.fake_service import TOKEN, FakeService


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


command_of = functools.cache(get_command)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeService:
    """What every client of the commands speaks to."""
    fake = FakeService()

    def options(settings: Any, timeout: float, _: Any) -> dict[str, Any]:
        return transport.options(settings, timeout, fake.transport())

    monkeypatch.setattr("tidings.client.synchronous.options", options)
    monkeypatch.setenv("TIDINGS_TOKEN", TOKEN)
    monkeypatch.delenv("TIDINGS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return fake


@pytest.fixture
def run(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Run:
    # To build the commands takes longer than to run one, so it is done once.
    monkeypatch.setattr("typer.testing._get_command", command_of)

    def run_command(*arguments: str, input: str | None = None) -> Ran:
        done = CliRunner().invoke(app, list(arguments), input=input)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run_command
