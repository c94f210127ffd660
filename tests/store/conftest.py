"""A disk that can be watched and broken, SQLite's own file layer with ours in front; and a PostgreSQL server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.store.catalogue import Catalogue, schema


class Disk(apsw.VFS):
    """Knows what was synced, and fails on demand."""

    def __init__(self) -> None:
        self.synced: dict[str, bytes] = {}  # each file as it was when it was last synced
        self.full_after: int | None = None  # bytes of the write-ahead log that still find room
        self.syncs_fail = False
        super().__init__("watched", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return _File(self, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:
        super().xDelete(name, sync_directory)
        self.synced.pop(name, None)  # a log syncs its directory when it is opened, and nothing is deleted later

    def after_power_cut(self, log: Path, copy: Path) -> Path:
        """A copy of a log with what was synced alone; the file that is never synced is there, or is not."""
        copy.mkdir()
        for name, content in self.synced.items():
            if Path(name).parent == log:
                (copy / Path(name).name).write_bytes(content)
        shutil.copy(log / "acknowledged", copy)
        return copy


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.full_after is not None and self._name.endswith("-wal"):
            if len(data) > self._disk.full_after:
                raise apsw.FullError("no room")
            self._disk.full_after -= len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._disk.syncs_fail:
            error = apsw.IOError("sync failed")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        super().xSync(flags)
        self._disk.synced[self._name] = Path(self._name).read_bytes()


@pytest.fixture
def disk() -> Iterator[Disk]:
    watched = Disk()
    yield watched
    watched.unregister()


class PostgreSQL:
    """A server of our own on a loopback port, with a role that owns databases and is no superuser."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = count()
        self._connections: dict[str, Any] = {}  # by database

    def url(self, database: str, user: str = "tidings") -> str:
        return f"postgresql://{user}@127.0.0.1:{self._port}/{database}"

    def new_database(self) -> str:
        name = f"catalogue{next(self._numbers)}"
        self.execute("postgres", f"CREATE DATABASE {name} OWNER tidings")
        return self.url(name)

    def execute(self, database: str, statement: str) -> None:
        import psycopg

        if database not in self._connections:
            self._connections[database] = psycopg.connect(self.url(database, "postgres"), autocommit=True)
        self._connections[database].execute(statement.encode())

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    places = [os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    initdb, postgres = (shutil.which(name, path=os.pathsep.join(places)) for name in ("initdb", "postgres"))
    if initdb is None or postgres is None:
        pytest.skip("NO POSTGRESQL HERE, the catalogue is not tested with it: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="pip install 'psycopg[binary]'")
    # It refuses to run as root, and its user may not go where pytest keeps what is temporary.
    user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="tidings-postgresql-"))
    server = None
    try:
        if user:
            shutil.chown(folder, "postgres", "postgres")
        command = [initdb, "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", str(folder / "data")]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, **user)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = {
            "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
            "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off",
        }  # fmt: skip
        command = [postgres, "-D", str(folder / "data"), *(f"--{name}={value}" for name, value in options.items())]
        with (folder / "output").open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, **user)
        running = PostgreSQL(port)
        _wait_for(running, server, folder / "output")
        running.execute("postgres", "CREATE ROLE tidings LOGIN")
        yield running
        running.close()
    finally:
        if server is not None:
            server.terminate()
            server.wait(LAST_RESORT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: PostgreSQL, process: subprocess.Popen[bytes], output: Path) -> None:
    import psycopg

    def serves() -> bool:
        assert process.poll() is None, f"PostgreSQL does not start:\n{output.read_text()}"
        with contextlib.suppress(psycopg.OperationalError):
            server.execute("postgres", "SELECT 1")
            return True
        return False

    until(serves)


@pytest.fixture(params=["sqlite", "postgresql"])
def catalogue_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a catalogue can be made: both databases have to behave the same."""
    if request.param == "sqlite":
        return str(tmp_path / "catalogue.sqlite")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.new_database()


@pytest.fixture(scope="session")
def in_postgresql(postgresql: PostgreSQL) -> Iterator[Catalogue]:
    with Catalogue(postgresql.new_database()) as opened:
        yield opened


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "catalogue.sqlite"
    Catalogue(path).close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalogue]:
    """One with nothing in it, in each database. Its tables are made once a run: that takes longer than most tests."""
    if request.param == "sqlite":
        path = shutil.copy(request.getfixturevalue("empty_file"), tmp_path)
        with Catalogue(path) as opened:
            yield opened
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    opened = request.getfixturevalue("in_postgresql")
    tables = ", ".join(table.name for table in schema.metadata.sorted_tables if table is not schema.catalogue)
    server.execute(
        opened.place.rpartition("/")[2], f"TRUNCATE {tables} RESTART IDENTITY; UPDATE catalogue SET revision = 0"
    )
    yield opened


@pytest.fixture
def known(catalogue: Catalogue) -> Catalogue:
    """A catalogue in which `ada` and `eve` each have a domain `flights`."""
    for tenant in ("ada", "eve"):
        catalogue.put_domain(tenant, "flights", json.dumps({"of": tenant}), inferred=False)
    return catalogue
