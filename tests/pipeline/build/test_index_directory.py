"""An index's directory: versions are whole, numbers only grow, and what is damaged is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import TidingsError
from tidings.pipeline.build.index_directory import IndexDirectory, Layout, Manifest, ShardFile, checksum
from tidings.pipeline.job_errors import PipelineError


def manifest(fingerprint: str) -> Manifest:
    return Manifest(
        fingerprint=fingerprint,
        domain={},
        id_type="bigint",
        subscriptions=1,
        rejected=0,
        elsewhere=0,
        reads=[["a"]],
        plan=None,
    )


def publish(directory: IndexDirectory, fingerprint: str, data: bytes = b"shard") -> int:
    with directory.staged() as staged:
        name = f"tidings-{fingerprint}.tidings"
        (staged / name).write_bytes(data)
        file = ShardFile(0, name, 1, len(data), checksum(staged / name))
        return directory.publish(staged, manifest(fingerprint), "replicated", Layout("replicated", (file,)))


def test_the_first_version_is_1_and_each_next_one_is_current(tmp_path: Path) -> None:
    directory = IndexDirectory(tmp_path / "index")
    assert directory.current() is None
    assert [publish(directory, "x"), publish(directory, "y")] == [1, 2]
    assert (tmp_path / "index" / "current").read_text() == "2\n"
    assert [directory.manifest(version).fingerprint for version in (1, 2)] == ["x", "y"]


def test_a_version_that_fails_leaves_nothing(tmp_path: Path) -> None:
    directory = IndexDirectory(tmp_path)
    publish(directory, "x")

    def fail() -> None:
        with directory.staged() as staged:
            (staged / "half").write_bytes(b"written")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "current"]


def test_a_layout_can_join_a_version_later(tmp_path: Path) -> None:
    directory = IndexDirectory(tmp_path)
    publish(directory, "x")
    assert directory.layout(1, "bluedove") is None
    with directory.staged() as staged:
        (staged / "another").write_bytes(b"b")
        file = ShardFile(3, "another", 1, 1, checksum(staged / "another"))
        directory.add_layout(staged, 1, "bluedove", Layout("bluedove", (file,), {"edges": []}))
    found = directory.layout(1, "bluedove")
    assert found is not None
    assert found.files == (file,)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("current", b"two", "not the number of a version"),
        ("1/index.json", b"{", "cannot read .*index.json.*compile the subscriptions again"),
        ("1/index.json", b'{"format": 99}', "has format 99, and this is Tidings with format 2; use the version"),
        ("1/index.json", b"[]", "is damaged"),
        ("1/tidings-x.tidings", b"sharp", "is damaged.*checksum"),
        ("1/tidings-x.tidings", None, "cannot read .*No such file"),
    ],
)
def test_what_is_damaged_is_refused_by_name(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    directory = IndexDirectory(tmp_path)
    publish(directory, "x")
    (tmp_path / name).unlink() if data is None else (tmp_path / name).write_bytes(data)
    with pytest.raises(TidingsError, match=message):  # noqa: PT012 - whichever of the three reads it
        directory.current()
        directory.manifest(1)
        directory.layout(1, "replicated")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with (
        pytest.raises(PipelineError, match=r"cannot use the directory .*file"),
        IndexDirectory(tmp_path / "file").staged(),
    ):
        pass
