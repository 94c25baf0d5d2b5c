"""Brings the schema up to date, or checks that it is. Safe to run concurrently and to interrupt.

Missing migrations run in one transaction under a lock, so PostgreSQL rolls back an incomplete schema; the same
transaction replaces the functions if this release has newer ones. An older release never replaces functions of a newer
one: in a rolling deploy its workers call the new functions. If nothing is missing, nothing is written, so that a role
without the right to create objects can open a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import SchemaVersionError
from holdfast.store.postgres.errors import is_gone
from holdfast.store.postgres.sql import Functions, Migration, functions, migrations, statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Migrated


class _State(NamedTuple):
    """The versions that the database has; zeros: none."""

    version: int = 0
    functions_release: int = 0
    functions_digest: int = 0

    def has(self, latest: int, new: Functions) -> bool:
        return self.version >= latest and not new.must_replace(self.functions_release, self.functions_digest)


async def migrate(tx: Tx, steps: Sequence[Migration] | None = None, new: Functions | None = None) -> Migrated:
    steps = migrations(tx.schema) if steps is None else steps
    new = functions(tx.schema) if new is None else new
    state, latest = await _read_state(tx), steps[-1].version
    _refuse_newer(state.version, latest, tx.schema)
    if not state.has(latest, new):
        state = await _apply(tx, steps, new)
    return Migrated(state.version, latest)


async def verify(tx: Tx, steps: Sequence[Migration] | None = None, new: Functions | None = None) -> Migrated:
    """Raise an error unless the schema has exactly this version, and the functions of this release or a newer one."""
    latest = (migrations(tx.schema) if steps is None else steps)[-1].version
    state = await _read_state(tx)
    _refuse_newer(state.version, latest, tx.schema)
    if not state.has(latest, functions(tx.schema) if new is None else new):
        what = f"has version {state.version}, this Holdfast needs {latest}"
        if state.version == latest:
            what = "has the functions of another release"
        raise SchemaVersionError(f"the schema {tx.schema} {what}. Run `holdfast migrate` once before starting workers")
    return Migrated(state.version, latest)


async def _read_state(tx: Tx) -> _State:
    sql = statements("schema", tx.schema)
    if not await tx.connection.fetchval(sql["has_meta"]):
        return _State()
    return _State(*await tx.connection.fetchrow(sql["state"]))


async def _apply(tx: Tx, steps: Sequence[Migration], new: Functions) -> _State:
    """Run what is missing; returns the state before, which is read again under the lock."""
    sql, connection = statements("schema", tx.schema), tx.connection
    await connection.execute("BEGIN")
    try:
        await connection.fetchval(sql["lock"])
        if not await connection.fetchval(sql["has_schema"], tx.schema):
            await connection.execute(sql["schema"])
        await connection.execute(sql["meta"])
        before = await _read_state(tx)
        for step in steps:
            if step.version > before.version:
                await connection.execute(step.script)
                await connection.fetch(sql["set_state"], "schema_version", step.version)
        if new.must_replace(before.functions_release, before.functions_digest):
            await connection.execute(new.script)
            await connection.fetch(sql["set_state"], "functions_release", new.release)
            await connection.fetch(sql["set_state"], "functions_digest", new.digest)
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
