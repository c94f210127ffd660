"""The commands in the manual and in the README work as they stand, one after the other, against a real gateway."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.cli import app
from tidings.commands import serve
from tidings.service.data.data_directory import DataDirectory
from tidings.service.supervisor import ServicePlan

ROOT = Path(__file__).parents[3]


def of_manual() -> list[str]:
    block = re.search(r"^```console\n(.*?)^```", (ROOT / "docs/service.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines() if line.startswith("$ ")]


def of_readme() -> list[str]:
    section = (ROOT / "README.md").read_text().split("## The service\n")[1].split("\n## ")[0]
    return re.findall(r"^tidings .*$", section, re.MULTILINE)


def of_serve() -> list[str]:
    """What `tidings serve` itself says to try."""
    return [line.strip() for line in serve.try_next(ServicePlan(DataDirectory("tidings-data")), demo=False)]


@pytest.mark.parametrize("commands", [of_manual, of_readme, of_serve])
def test_every_command_works_as_it_stands(commands: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_TOKEN", gateway.token)
    monkeypatch.setenv("TIDINGS_URL", gateway.url)
    monkeypatch.setenv("COLUMNS", "120")
    subscribed, first = "", gateway.end
    lines = commands()
    assert len(lines) >= 3
    printed = ""
    for line in lines:
        program, command, *arguments = shlex.split(line)
        assert Path(program).name == "tidings"
        if command == "subscribe":
            subscribed = arguments[arguments.index("--id") + 1]
        if command in ("pull", "tail"):  # in place of the driver, which matches and replays
            for job in gateway.open_jobs():
                gateway.catalogue.close_job(job.id, {"done": True})
            gateway.context.subscriptions.forget(gateway.name, subscribed)
            if first == gateway.end:  # somebody publishes what the subscriber waits for
                gateway.client.post("/v1/domains/quotes/events", json={"symbol": "OIL", "price": 8.45})
            gateway.load(list(range(first, gateway.end)), subscribed)
            first = gateway.end
            arguments += ["--count", "1"] if command == "tail" and "--count" not in arguments else []
        arguments = [gateway.url if word.startswith("http://127.0.0.1") else word for word in arguments]
        arguments = [str(gateway.end - 1) if word == "0" else word for word in arguments]  # others published before
        ran = CliRunner().invoke(app, [command, *arguments])
        assert ran.exit_code == 0, (line, ran.output, ran.exception)
        printed += ran.output
    assert re.search(r"8\.4\d?", printed)
