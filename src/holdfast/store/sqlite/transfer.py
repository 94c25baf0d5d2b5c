"""A SQLite file as the source or the target of a transfer.

The statements that read and write rows are made from the list of columns (``store/protocol/transfer.py``). While the
file is fenced, triggers refuse every write of the engine, also those of processes that had the file open before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from holdfast.store.protocol.transfer import TABLES, Fence, Kind, Row, TransferTable
from holdfast.store.sqlite import blobs, opening
from holdfast.store.sqlite.errors import translate
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.rows import decode_text, encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import write_transaction

_SQL = statements("transfer")
_FENCED = (*(table.name for table in TABLES), "worker")
_WRITES = ("INSERT", "UPDATE", "DELETE")
_EXPRESSIONS = {
    # A run without units has no count of missing units on PostgreSQL, and 0 here.
    # Permits that wait are not carried: the task is due in the target, and requests its permit again.
    ("task", "run_at"): "iif(EXISTS (SELECT 1 FROM holdfast_permit AS p WHERE p.run = holdfast_task.run "
    "AND p.unit = holdfast_task.unit AND p.state < 2), 0, run_at)",
    # Nor are fair keys: a run that has not begun is due in the target, in the order of the starts.
    ("task", "bucket"): "iif(bucket = 3, 1, bucket)",
    ("task", "missing"): "iif(unit = 0 AND (SELECT kind FROM holdfast_run WHERE id = run) <> 'graph', NULL, missing)",
}
"""Expressions that read a column, where the name of the column does not."""
_SOURCES = {
    "permit": "(SELECT p.run, p.unit, p.step, p.attempt, p.priority, p.requested_at, g.limits "
    "FROM holdfast_permit AS p JOIN holdfast_permit_group AS g ON g.id = p.grp WHERE p.state = 2 AND p.until_end = 1)"
}
"""Queries that read a table, where the table has other columns or rows."""
_DEFAULTS = {("task", "missing"): 0}
"""Values that replace NULL."""


class SqliteTransfer:
    def __init__(
        self, path: str, now: Callable[[], int], driver: opening.SqliteDriver = opening.SqliteDriver.APSW
    ) -> None:
        self._path = path
        self._driver = driver
        self._now = now
        self._connection: apsw.Connection

    async def open(self) -> None:
        opening.prepare(self._path, create=False)
        with self._translating():
            self._connection = opening.writer(self._path, Guard(), self._driver)

    async def close(self) -> None:
        self._connection.close()

    async def fence(self) -> Fence | None:
        row = self._connection.execute(_SQL["fence"]).fetchone()
        return None if row is None else Fence(*row)

    async def close_source(self, fence: Fence) -> str | None:
        with self._writing():
            workers = self._connection.execute(_SQL["living_workers"], (self._now(),)).get
            if workers:
                return f"these workers are alive: {workers}"
            if owned := self._connection.execute(_SQL["owned_tasks"]).get:
                return f"{owned} tasks are owned by a process; stop it, or wait until its leases have expired"
            self._close(fence)
        return None

    async def close_target(self, fence: Fence) -> str | None:
        with self._writing():
            for table in TABLES:
                if self._connection.execute(f"SELECT EXISTS (SELECT 1 FROM holdfast_{table.name})").get:
                    return f"it is not empty: holdfast_{table.name} has rows"
            self._connection.execute(_SQL["set_fence"], tuple(fence))
            for name in [row[0] for row in self._connection.execute(_SQL["blob_triggers"])]:
                self._connection.execute(f'DROP TRIGGER "{name}"')  # the counts of references are carried
        return None

    def _close(self, fence: Fence) -> None:
        self._connection.execute(_SQL["set_fence"], tuple(fence))
        for table in _FENCED:
            for write in _WRITES:
                self._connection.execute(
                    f"CREATE TRIGGER IF NOT EXISTS holdfast_fence_{table}_{write} BEFORE {write} ON holdfast_{table} "
                    "BEGIN SELECT RAISE(ABORT, 'the database is fenced for a transfer'); END"
                )

    async def set_reason(self, reason: str) -> None:
        with self._writing():
            self._connection.execute(_SQL["set_reason"], (reason,))

    async def release(self) -> None:
        with self._writing():
            for table in _FENCED:
                for write in _WRITES:
                    self._connection.execute(f"DROP TRIGGER IF EXISTS holdfast_fence_{table}_{write}")
            self._connection.execute(_SQL["delete_fence"])

    async def last_id(self) -> int:
        last: int = self._connection.execute(_SQL["last_id"]).get
        return last

    async def read(self, table: TransferTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        key = ", ".join(table.key)
        names = [_EXPRESSIONS.get((table.name, name), name) for name in table.names]
        where, arguments = "", []
        if after is not None:
            where = f"WHERE ({key}) > ({', '.join('?' * len(after))})"
            arguments = [encode_text_or_none(value) if isinstance(value, str) else value for value in after]
        order = f"{where} ORDER BY {key} LIMIT {limit}"
        if table.name == "term":  # the key of a page is an instance, which has several terms
            order = f"WHERE instance IN (SELECT DISTINCT instance FROM holdfast_term {order}) ORDER BY instance"
        source = _SOURCES.get(table.name, f"holdfast_{table.name}")
        found = self._connection.execute(f"SELECT {', '.join(names)} FROM {source} {order}", arguments)
        return [_neutral(table, row) for row in found]

    async def write(self, table: TransferTable, rows: Sequence[Row], position: str) -> None:
        columns, marks = ", ".join(table.names), ", ".join("?" * len(table.columns))
        insert = f"INSERT INTO holdfast_{table.name} ({columns}) VALUES ({marks})"
        stored = [_stored(table, row) for row in rows]
        with self._writing():
            if table.name == "permit":
                for name in ("insert_group", "insert_permit", "count_permit", "mark_task"):
                    self._connection.executemany(
                        _SQL[name], [dict(zip(table.names, row, strict=True)) for row in stored]
                    )
            else:
                self._connection.executemany(insert, stored)
            self._connection.execute(_SQL["set_position"], (position,))

    async def replace(self, table: TransferTable, changes: Sequence[tuple[str, Sequence[Any], Any, Any]]) -> int:
        replaced, where = 0, " AND ".join(f"{name} = ?" for name in table.key)
        with self._writing():
            for column, key, old, new in changes:
                sql = f"UPDATE holdfast_{table.name} SET {column} = ? WHERE {where} AND {column} IS ?"
                values = [encode_text_or_none(v) if isinstance(v, str) else v for v in (new, *key, old)]
                self._connection.execute(sql, values)
                replaced += self._connection.changes()
        return replaced

    async def finish(self, last_id: int) -> None:
        last_id = max(last_id, await self.last_id())
        with self._writing():
            for name in ("finish_units", "finish_replies", "finish_outbox", "delete_sequence"):
                self._connection.execute(_SQL[name])
            self._connection.execute(_SQL["set_sequence"], (last_id,))
            if self._connection.execute(_SQL["has_blobs"]).get:
                blobs.create_triggers(self._connection)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._translating(), write_transaction(self._connection):
            yield

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise translate(error, self._path, opening.BUSY_S) from error


def _neutral(table: TransferTable, row: Row) -> Row:
    return tuple(_neutral_value(column.kind, value) for column, value in zip(table.columns, row, strict=True))


def _neutral_value(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case Kind.FLAG:
            return value == 1
        case Kind.FREE:
            return decode_text(value)
        case Kind.TERM:
            number = isinstance(value, int | float)
            return (int(value) if value == int(value) else value) if number else decode_text(value)
        case _:
            return value


def _stored(table: TransferTable, row: Row) -> Row:
    return tuple(
        _DEFAULTS.get((table.name, column.name))
        if value is None
        else encode_text_or_none(value)
        if isinstance(value, str)
        else value
        for column, value in zip(table.columns, row, strict=True)
    )
