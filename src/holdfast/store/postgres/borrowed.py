"""Finds the asyncpg connection behind a caller's connection, for writes in the caller's transaction."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.show import type_name
from holdfast.errors import InvalidOptionError
from holdfast.store.postgres.tx import Connection


async def driver_connection(connection: Any) -> Connection:
    """The asyncpg connection behind ``connection``; a transaction that SQLAlchemy opens lazily is opened."""
    if isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        return cast("Connection", connection)
    if hasattr(connection, "sync_session") and hasattr(connection, "connection"):  # SQLAlchemy's AsyncSession
        connection = await connection.connection()
    if hasattr(connection, "get_raw_connection") and hasattr(connection, "exec_driver_sql"):  # and its AsyncConnection
        raw = (await connection.get_raw_connection()).driver_connection
        if isinstance(raw, asyncpg.Connection):
            if not raw.is_in_transaction():
                # SQLAlchemy begins the transaction with the first statement.
                await connection.exec_driver_sql("SELECT 1")
            return cast("Connection", raw)
    raise InvalidOptionError(
        f"connection= is a {type_name(connection)}. Give an asyncpg connection, or SQLAlchemy's AsyncConnection or "
        "AsyncSession on asyncpg, to the database of this store"
    )
