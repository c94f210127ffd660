"""Only their owner can read the files of a data directory, whichever process made them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import until

from tidings.service.data import private_files
from tidings.service.data.data_directory import DataDirectory
from tidings.service.data.private_files import PrivateFilesError, tighten, too_open
from tidings.service.supervisor import ServicePlan, prepared

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes are those of Unix")

GATEWAY = (
    "import os, sys; os.umask(0); from tidings.service.gateway.gateway_process import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def test_files_that_others_can_read_are_tightened_at_a_start(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    with prepared(ServicePlan(data)):
        pass
    (data.log / "events.sqlite").write_bytes(b"")
    (data.log / "events.sqlite").chmod(0o644)
    (data.domains / "ada.quotes").mkdir()
    (data.domains / "ada.quotes").chmod(0o755)
    (data.domains / "ada.quotes" / "python").touch()
    (data.domains / "ada.quotes" / "python").chmod(0o777)
    data.path.chmod(0o755)
    with prepared(ServicePlan(data)):
        assert too_open(data.path) == []
    assert (data.log / "events.sqlite").stat().st_mode & 0o777 == 0o600
    assert (data.domains / "ada.quotes" / "python").stat().st_mode & 0o777 == 0o700


def test_files_that_cannot_be_tightened_are_refused_with_their_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").touch()
    (tmp_path / "token").chmod(0o644)

    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(PrivateFilesError, match=rf"belongs to user {os.getuid()}; serve as that user, or give it"):
        tighten(tmp_path)


def test_files_of_spark_may_have_any_mode_in_a_private_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    shipped = tmp_path / "runs" / "7-x" / "spark-1" / "userFiles" / "shard"
    shipped.parent.mkdir(parents=True)
    for folder in (tmp_path / "runs", tmp_path / "runs" / "7-x"):
        folder.chmod(0o700)
    shipped.touch()
    shipped.chmod(0o711)
    assert too_open(tmp_path) == []
    (tmp_path / "runs" / "7-x").chmod(0o755)
    assert too_open(tmp_path) == [tmp_path / "runs" / "7-x"]


def test_a_link_to_nothing_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    tmp_path.chmod(0o700)
    assert tighten(tmp_path) == 0


def test_every_file_that_a_gateway_makes_is_private_whatever_the_umask(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")
    data = DataDirectory(tmp_path / "data")
    with subprocess.Popen([sys.executable, "-c", GATEWAY, str(data.path), "--port", "0"]) as process:
        until(lambda: data.token.exists() and data.deliveries.exists())
        assert too_open(data.path) == []
        process.terminate()
    assert too_open(data.path) == []


def test_processes_that_a_private_one_starts_are_private(tmp_path: Path) -> None:
    program = (
        "from tidings.service.data.private_files import be_private; be_private(); import os; os.system('touch made')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o666 & ~private_files.UMASK
