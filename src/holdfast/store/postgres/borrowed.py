"""Finds the driver's connection behind a caller's connection, for writes in the caller's transaction."""

from __future__ import annotations

import sys
from typing import Any, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.show import type_name
from holdfast.errors import InvalidOptionError
from holdfast.store.callers import Lent, driver_connection, in_thread_of
from holdfast.store.postgres.tx import Connection


async def callers_connection(connection: Any, where: str) -> Connection:
    """The connection behind ``connection``; a transaction that SQLAlchemy opens lazily is opened."""
    found = await _driver_connection(connection)
    if isinstance(found, asyncpg.Connection | PoolConnectionProxy):
        return cast("Connection", found)
    if _is_psycopg(found):
        from holdfast.store.postgres.psycopg import PsycopgConnection  # noqa: PLC0415  (an optional package)

        run = connection.run if isinstance(connection, Lent) else None
        return cast("Connection", PsycopgConnection(found, where, run))
    shown = connection.connection if isinstance(connection, Lent) else connection
    raise InvalidOptionError(
        f"connection= is a {type_name(shown)}. Give a connection of asyncpg or psycopg 3, or a connection or session "
        "of SQLAlchemy on one of them, to the database of this store"
    )


async def _driver_connection(connection: Any) -> Any:
    if hasattr(connection, "sync_session") and hasattr(connection, "connection"):  # SQLAlchemy's AsyncSession
        connection = await connection.connection()
    if hasattr(connection, "get_raw_connection") and hasattr(connection, "exec_driver_sql"):  # and its AsyncConnection
        await connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins the transaction with the first statement
        return (await connection.get_raw_connection()).driver_connection
    return await in_thread_of(connection, driver_connection)


def _is_psycopg(connection: Any) -> bool:
    psycopg = sys.modules.get("psycopg")  # a program with such a connection has loaded it
    return psycopg is not None and isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
