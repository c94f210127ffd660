"""A wheel that is built here and installed elsewhere works without the checkout."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LAST_RESORT_S = 600

pytestmark = [pytest.mark.long, pytest.mark.spark]


class Installation:
    """A virtual environment of its own, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)

    def install(self, requirement: str) -> None:
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, requirement], check=True, env=self.environment, cwd=self.folder)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            cwd=self.folder,
        )
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """`tidings serve`, once it says that it is ready."""
        command = [str(self.bin / "tidings"), "serve", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment, cwd=self.folder)
        last_resort = threading.Timer(LAST_RESORT_S, process.kill)
        last_resort.start()
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("ready"):
                    break
            else:
                pytest.fail("it ended before it was ready: " + "".join(said))
            yield process
        finally:
            last_resort.cancel()
            process.terminate()
            process.communicate(timeout=LAST_RESORT_S)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("elsewhere"))
    made.install(str(wheel))
    return made


def readme_example() -> str:
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    return found[1]


def test_it_is_the_installed_package_that_runs(installation: Installation) -> None:
    place = installation.run("python", "-c", "import tidings; print(tidings.__file__)")
    assert Path(place.strip()).is_relative_to(installation.folder)


def test_the_readme_s_library_example_runs_without_extras(installation: Installation) -> None:
    example = installation.folder / "example.md"
    example.write_text(readme_example(), encoding="utf-8")
    options = ["-o", "ELLIPSIS", "-o", "NORMALIZE_WHITESPACE"]
    assert installation.run("python", "-m", "doctest", *options, str(example)) == ""


def test_the_demo_runs_without_extras(installation: Installation) -> None:
    assert "Who gets what" in installation.run("tidings", "demo", "--subscribers", "200")


def test_the_service_serves_with_its_extra(installation: Installation, wheel: Path) -> None:
    installation.install(f"tidings[service] @ {wheel.as_uri()}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    service = ("--url", f"http://127.0.0.1:{port}", "--token-file", "tidings-data/token")
    with installation.serving("--port", port, "--master", "local[1]") as process:
        installation.run("tidings", "domain", "put", "quotes", "-a", "price:double", *service)
        installation.run("tidings", "subscribe", "quotes", "price > 8.30", "--id", "dear", *service)
        installation.run("tidings", "publish", "quotes", '[{"price": 8.40}, {"price": 8.20}]', *service)
        received = installation.run("tidings", "tail", "dear", "--count", "1", *service)
        assert '"price": 8.4' in received
    assert process.returncode == 0
