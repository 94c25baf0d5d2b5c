"""A schema of a PostgreSQL database as the source or the target of a transfer.

The statements that read and write rows are made from the list of columns (``store/protocol/transfer.py``). While the
schema is fenced, triggers refuse every write of the engine, also those of processes that were connected before.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import asyncpg

from holdfast.store.postgres.blobs import create_triggers
from holdfast.store.postgres.errors import translate
from holdfast.store.postgres.settings import parse
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text, encode_text
from holdfast.store.protocol.transfer import TABLES, Fence, Kind, Row, TransferTable

_FENCED = (*(table.name for table in TABLES), "worker")
_OWN_KEY = "substring(dedup FROM 1 FOR 1) <> '\\xff'::bytea"
"""True for a key that the sender gave; others were made for a call and identify nothing later."""
_EXPRESSIONS = {
    ("event", "dedup"): f"CASE WHEN {_OWN_KEY} THEN dedup END",
    ("event", "line"): f"CASE WHEN {_OWN_KEY} THEN line END",
    ("term", "value"): "text, number",
    ("permit", "limits"): "names, keys",
    # Permits that wait are not carried: the task is due in the target, and requests its permit again.
    ("task", "run_at"): "CASE WHEN EXISTS (SELECT FROM {permit} AS p WHERE p.run = t.run AND p.unit = t.unit "
    "AND p.state < 2) THEN 0 ELSE run_at END",
    # Nor are fair keys: a run that has not begun is due in the target, in the order of the starts.
    ("task", "bucket"): "CASE WHEN bucket = 3 THEN 1 ELSE bucket END",
}
"""Expressions that read a column, where the name of the column does not."""
_SOURCES = {
    "permit": "(SELECT p.run, p.unit, p.step, p.attempt, p.priority, p.requested_at, g.names, g.keys "
    "FROM {permit} AS p JOIN {permit_group} AS g ON g.id = p.grp WHERE p.state = 2 AND p.until_end)"
}
"""Queries that read a table, where the table has other columns or rows."""


class PostgresTransfer:
    def __init__(self, url: str, schema: str) -> None:
        self._settings = parse(url)
        self._schema = schema
        self._sql = statements("transfer", schema)
        self._connection: Any

    async def open(self) -> None:
        async with self._translating():
            self._connection = await asyncpg.connect(self._settings.dsn, timeout=round(self._settings.connect_timeout))

    async def close(self) -> None:
        await self._connection.close()

    async def fence(self) -> Fence | None:
        row = await self._connection.fetchrow(self._sql["fence"])
        return None if row is None else Fence(*row)

    async def close_source(self, fence: Fence) -> str | None:
        refusal = await self._in_use()  # before the locks, for which the heartbeat of a living worker would wait
        if refusal is not None:
            return refusal
        try:
            async with self._writing():
                await self._close(fence)
        except _InUse as refusal:
            return str(refusal)
        return None

    async def _close(self, fence: Fence) -> None:
        """Create the triggers, which waits for writers, and then check that no other process uses the database."""
        for table in _FENCED:
            await self._connection.execute(
                f"CREATE OR REPLACE TRIGGER holdfast_fence BEFORE INSERT OR UPDATE OR DELETE ON {self._table(table)} "
                f'FOR EACH STATEMENT EXECUTE FUNCTION "{self._schema}".holdfast_refuse_write()'
            )
        refusal = await self._in_use()
        if refusal is not None:
            raise _InUse(refusal)
        await self._connection.execute(self._sql["set_fence"], *fence)

    async def _in_use(self) -> str | None:
        workers = await self._connection.fetchval(self._sql["living_workers"])
        if workers:
            return f"these workers are alive: {workers}"
        owned = await self._connection.fetchval(self._sql["owned_tasks"])
        return (
            f"{owned} tasks are owned by a process; stop it, or wait until its leases have expired" if owned else None
        )

    async def close_target(self, fence: Fence) -> str | None:
        async with self._writing():
            for table in TABLES:
                if await self._connection.fetchval(f"SELECT EXISTS (SELECT FROM {self._table(table.name)})"):
                    return f"it is not empty: holdfast_{table.name} has rows"
            await self._connection.execute(self._sql["set_fence"], *fence)
            for row in await self._connection.fetch(self._sql["blob_triggers"], self._schema):
                # The counts of references are carried.
                await self._connection.execute(f'DROP TRIGGER {row[0]} ON "{self._schema}".{row[1]}')
        return None

    async def set_reason(self, reason: str) -> None:
        async with self._writing():
            await self._connection.execute(self._sql["set_reason"], reason)

    async def release(self) -> None:
        async with self._writing():
            for table in _FENCED:
                await self._connection.execute(f"DROP TRIGGER IF EXISTS holdfast_fence ON {self._table(table)}")
            await self._connection.execute(self._sql["delete_fence"])

    async def last_id(self) -> int:
        last: int = await self._connection.fetchval(self._sql["last_id"])
        return last

    async def read(self, table: TransferTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        key = ", ".join(table.key)
        names = [self._named(_EXPRESSIONS.get((table.name, name), name)) for name in table.names]
        where, arguments = "", []
        if after is not None:
            where = f"WHERE ({key}) > ({', '.join(f'${n}' for n in range(1, len(after) + 1))})"
            kinds = dict(table.columns)
            arguments = [
                encode_text(value) if kinds[name] is Kind.FREE else value
                for name, value in zip(table.key, after, strict=True)
            ]
        order = f"{where} ORDER BY {key} LIMIT {limit}"
        if table.name == "term":  # the key of a page is an instance, which has several terms
            pages = f"SELECT DISTINCT instance FROM {self._table('term')} {order}"
            order = f"WHERE instance IN ({pages}) ORDER BY instance"
        source = self._named(_SOURCES.get(table.name, self._table(table.name)))
        sql = f"SELECT {', '.join(names)} FROM {source} AS t {order}"
        return [_neutral(table, tuple(row)) for row in await self._connection.fetch(sql, *arguments)]

    async def write(self, table: TransferTable, rows: Sequence[Row], position: str) -> None:
        columns = [name for name in table.names if name != "value" or table.name != "term"]
        columns += ["text", "number"] if table.name == "term" else ["bound"] if table.name == "task" else []
        stored = [_stored(table, row) for row in rows]
        async with self._writing():
            if table.name == "permit":
                await self._write_permits(table, stored)
            else:
                await self._connection.copy_records_to_table(
                    f"holdfast_{table.name}", schema_name=self._schema, columns=columns, records=stored
                )
            await self._connection.execute(self._sql["set_position"], position)

    async def _write_permits(self, table: TransferTable, rows: Sequence[Row]) -> None:
        for row in rows:
            permit = dict(zip(table.names, row, strict=True))
            limits = [[limit[n] for limit in json.loads(permit["limits"])] for n in (0, 1)]
            task = permit["run"], permit["unit"]
            await self._connection.execute(self._sql["insert_group"], *limits)
            values = [permit[name] for name in ("step", "attempt", "priority", "requested_at")]
            await self._connection.execute(self._sql["insert_permit"], *task, *values, *limits)
            await self._connection.execute(self._sql["count_permit"], *limits)
            await self._connection.execute(self._sql["mark_task"], *task)

    async def replace(self, table: TransferTable, changes: Sequence[tuple[str, Sequence[Any], Any, Any]]) -> int:
        kinds, replaced = dict(table.columns), 0
        where = " AND ".join(f"{name} = ${n}" for n, name in enumerate(table.key, 3))
        async with self._writing():
            for column, key, old, new in changes:
                sql = f"UPDATE {self._table(table.name)} SET {column} = $1 WHERE {where} AND {column} = $2"
                names = [column, column, *table.key]
                values = [
                    encode_text(value) if kinds[name] is Kind.FREE else value
                    for name, value in zip(names, (new, old, *key), strict=True)
                ]
                replaced += int((await self._connection.execute(sql, *values)).rpartition(" ")[2])
        return replaced

    async def finish(self, last_id: int) -> None:
        async with self._writing():
            await self._connection.execute(self._sql["finish_outbox"])
            await self._connection.fetch(self._sql["finish_audit"])
            await self._connection.fetchval(self._sql["set_last_id"], max(last_id, await self.last_id(), 1))
            if await self._connection.fetchval(self._sql["has_blobs"]):
                await create_triggers(self._connection, self._schema)
            for table in TABLES:
                await self._connection.execute(f"ANALYZE {self._table(table.name)}")

    def _named(self, text: str) -> str:
        return text.replace("{permit}", self._table("permit")).replace("{permit_group}", self._table("permit_group"))

    def _table(self, name: str) -> str:
        return f'"{self._schema}".holdfast_{name}'

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        async with self._translating(), self._connection.transaction():
            yield

    @asynccontextmanager
    async def _translating(self) -> AsyncIterator[None]:
        try:
            yield
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise translate(error, self._settings.where) from error


class _InUse(Exception):
    """The database is in use."""


def _neutral(table: TransferTable, row: Row) -> Row:
    if table.name == "term":
        *head, text, number = row
        row = (*head, decode_text(text) if number is None else _number(number))
    elif table.name == "permit":
        *head, names, keys = row
        row = (*head, json.dumps([*zip(names, keys, strict=True)]))
    return tuple(
        decode_text(value) if column.kind is Kind.FREE else value
        for column, value in zip(table.columns, row, strict=True)
    )


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _stored(table: TransferTable, row: Row) -> Row:
    values = tuple(
        encode_text(value) if column.kind is Kind.FREE else value
        for column, value in zip(table.columns, row, strict=True)
    )
    if table.name == "term":
        *head, value = values
        return (*head, *((encode_text(value), None) if isinstance(value, str) else (None, Decimal(repr(value)))))
    return (*values, True) if table.name == "task" else values
