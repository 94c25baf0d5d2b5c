"""Writes on a connection that is the caller's, in their transaction. To commit is theirs, too."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.show import type_name
from holdfast.errors import InvalidOptionError
from holdfast.store.postgres.tx import Connection


async def driver_connection(given: Any) -> Connection:
    """The asyncpg connection in what was given, with a transaction open where the giver means one to be."""
    if isinstance(given, asyncpg.Connection | PoolConnectionProxy):
        return cast("Connection", given)
    if hasattr(given, "sync_session") and hasattr(given, "connection"):  # SQLAlchemy's AsyncSession
        given = await given.connection()
    if hasattr(given, "get_raw_connection") and hasattr(given, "exec_driver_sql"):  # and its AsyncConnection
        raw = (await given.get_raw_connection()).driver_connection
        if isinstance(raw, asyncpg.Connection):
            if not raw.is_in_transaction():
                await given.exec_driver_sql("SELECT 1")  # it begins the transaction with its first statement only
            return cast("Connection", raw)
    raise InvalidOptionError(
        f"connection= is a {type_name(given)}. Give an asyncpg connection, or SQLAlchemy's AsyncConnection or "
        "AsyncSession on asyncpg, to the database of this store"
    )
