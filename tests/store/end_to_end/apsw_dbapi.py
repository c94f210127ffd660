"""As much of Python's `sqlite3` as SQLAlchemy asks for, by apsw: the catalogue too can be on a recorded disk then."""

from __future__ import annotations

from typing import Any

import apsw


class Connection:
    synchronous = "FULL"  # whatever is asked for

    def __init__(self, path: str, timeout: float = 5.0, **_: Any) -> None:
        self.apsw = apsw.Connection(path)
        self.apsw.set_busy_timeout(round(timeout * 1000))
        self.isolation_level: str | None = None

    def cursor(self) -> Cursor:
        return Cursor(self.apsw)

    def execute(self, sql: str, parameters: Any = ()) -> Cursor:
        if sql.startswith("PRAGMA synchronous"):
            sql = f"PRAGMA synchronous = {self.synchronous}"
        return self.cursor().execute(sql, parameters)

    def create_function(self, name: str, count: int, function: Any, deterministic: bool = False) -> None:
        self.apsw.create_scalar_function(name, function, count, deterministic=deterministic)

    def commit(self) -> None:
        if self.apsw.in_transaction:
            self.execute("COMMIT")

    def rollback(self) -> None:
        if self.apsw.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        self.apsw.close()


class Cursor:
    arraysize = 1

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: list[Any] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    def execute(self, sql: str, parameters: Any = ()) -> Cursor:
        cursor = self._connection.cursor()
        described: list[Any] = []

        def trace(running: Any, statement: str, bindings: Any) -> bool:
            described.extend((*column, None, None, None, None, None) for column in running.get_description())
            return True

        cursor.set_exec_trace(trace)
        before = self._connection.total_changes()
        self._rows = cursor.execute(sql, parameters or None).fetchall()
        self.description = described or None
        self.rowcount = self._connection.total_changes() - before
        self.lastrowid = self._connection.last_insert_rowid()
        return self

    def executemany(self, sql: str, many: Any) -> Cursor:
        count = 0
        for parameters in many:
            count += self.execute(sql, parameters).rowcount
        self.rowcount = count
        return self

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchmany(self, size: int = 1) -> list[Any]:
        taken, self._rows = self._rows[:size], self._rows[size:]
        return taken

    def fetchall(self) -> list[Any]:
        taken, self._rows = self._rows, []
        return taken

    def close(self) -> None:
        self._rows = []
