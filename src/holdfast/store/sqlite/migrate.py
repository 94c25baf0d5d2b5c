"""Migrates or verifies the schema. Several processes may migrate at once, and any of them may be killed."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import SchemaVersionError
from holdfast.store.protocol import Migrated
from holdfast.store.sqlite.sql import Migration, migrations, statements
from holdfast.store.sqlite.tx import Connection, write_transaction

_SQL = statements("schema")


def migrate(connection: Connection, path: str, steps: Sequence[Migration] | None = None) -> Migrated:
    """Apply the missing migrations, each in a transaction of its own that first reads the version again."""
    steps = migrations() if steps is None else steps
    before, latest = version(connection), steps[-1].version
    _refuse_newer(before, latest, path)
    for step in steps:
        if version(connection) < step.version:
            _apply(connection, step)
    return Migrated(before, latest)


def verify(connection: Connection, path: str, steps: Sequence[Migration] | None = None) -> Migrated:
    """Raise unless the schema has exactly the version that this code needs."""
    latest = (migrations() if steps is None else steps)[-1].version
    found = version(connection)
    _refuse_newer(found, latest, path)
    if found < latest:
        raise SchemaVersionError(
            f"{path} has schema version {found}, this Holdfast needs {latest}. "
            "Run the migrations once (open with migrate=True) before starting workers"
        )
    return Migrated(found, latest)


def version(connection: Connection) -> int:
    if not connection.execute(_SQL["has_meta"]).get:
        return 0
    return int(connection.execute(_SQL["version"]).get)


def _apply(connection: Connection, step: Migration) -> None:
    with write_transaction(connection):
        connection.execute(_SQL["meta"])
        if version(connection) < step.version:  # another process may have been faster
            connection.execute(step.script)
            connection.execute(_SQL["set_version"], (step.version,))


def _refuse_newer(found: int, latest: int, path: str) -> None:
    if found > latest:
        raise SchemaVersionError(
            f"{path} has schema version {found}, newer than this Holdfast knows ({latest}). "
            "Upgrade Holdfast here; an older version must not write to it"
        )
