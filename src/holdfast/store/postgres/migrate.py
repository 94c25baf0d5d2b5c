"""Brings the schema up to date, or says that it is not. Any number may do it at once, and be killed.

All that is missing is done in one transaction under a lock: PostgreSQL takes back a half-made schema by itself. Where
nothing is missing nothing is written, so that a role without the right to create anything can open a store.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import SchemaVersionError
from holdfast.store.postgres.errors import is_gone
from holdfast.store.postgres.sql import Migration, migrations, statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Migrated


async def migrate(tx: Tx, steps: Sequence[Migration] | None = None) -> Migrated:
    steps = migrations(tx.schema) if steps is None else steps
    before, latest = await version(tx), steps[-1].version
    _refuse_newer(before, latest, tx.schema)
    if before < latest:
        before = await _apply(tx, steps)
    return Migrated(before, latest)


async def verify(tx: Tx, steps: Sequence[Migration] | None = None) -> Migrated:
    """Raise unless the schema is exactly this version's."""
    latest = (migrations(tx.schema) if steps is None else steps)[-1].version
    found = await version(tx)
    _refuse_newer(found, latest, tx.schema)
    if found < latest:
        raise SchemaVersionError(
            f"the schema {tx.schema} has version {found}, this Holdfast needs {latest}. "
            "Run `holdfast migrate` once before starting workers"
        )
    return Migrated(found, latest)


async def version(tx: Tx) -> int:
    sql = statements("schema", tx.schema)
    if not await tx.connection.fetchval(sql["has_meta"]):
        return 0
    return int(await tx.connection.fetchval(sql["version"]))


async def _apply(tx: Tx, steps: Sequence[Migration]) -> int:
    """Do what is missing; which version was there before, for another process may have been faster."""
    sql, connection = statements("schema", tx.schema), tx.connection
    await connection.execute("BEGIN")
    try:
        await connection.fetchval(sql["lock"])
        if not await connection.fetchval(sql["has_schema"], tx.schema):
            await connection.execute(sql["schema"])
        await connection.execute(sql["meta"])
        before = await version(tx)
        for step in steps:
            if step.version > before:
                await connection.execute(step.script)
                await connection.fetch(sql["set_version"], step.version)
        await connection.execute("COMMIT")
    except BaseException:
        if not is_gone(connection) and connection.is_in_transaction():
            await connection.execute("ROLLBACK")
        raise
    return before


def _refuse_newer(found: int, latest: int, schema: str) -> None:
    if found > latest:
        raise SchemaVersionError(
            f"the schema {schema} has version {found}, newer than this Holdfast knows ({latest}). "
            "Upgrade Holdfast here; an older version must not write to it"
        )
