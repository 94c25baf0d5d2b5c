"""Connections that callers give with ``connection=``: the thread that owns one, and the driver's connection behind it.

A blocking driver is called in the thread of its owner. In async code that is the thread of the event loop, which waits
for the statement as it does for the caller's own. The blocking client lends the connection of its calling thread
(``Lent``): some drivers, such as ``sqlite3``, refuse other threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


class RunInThread(Protocol):
    """Runs a function in the thread that owns a connection."""

    def __call__(self, function: Callable[[], R], /) -> Awaitable[R]: ...


@dataclass(frozen=True, slots=True)
class Lent:
    """A connection whose owner is another thread, which waits and runs functions meanwhile."""

    connection: Any
    run: RunInThread


async def in_thread_of(connection: Any, use: Callable[[Any], R]) -> R:
    """Use a connection in the thread of its owner."""
    if isinstance(connection, Lent):
        lent = connection.connection
        return await connection.run(lambda: use(lent))
    return use(connection)


def driver_connection(connection: Any) -> Any:
    """The driver's connection behind a blocking connection of SQLAlchemy or Django; others are returned unchanged.

    A transaction that the library begins lazily is begun, so that its commit includes the rows of this call.
    """
    if hasattr(connection, "get_bind") and hasattr(connection, "connection") and not _is_async(connection):
        connection = connection.connection()  # SQLAlchemy's Session
    if hasattr(connection, "exec_driver_sql") and hasattr(connection, "connection") and not _is_async(connection):
        connection.exec_driver_sql("SELECT 1")  # SQLAlchemy's Connection begins with its first statement
        return connection.connection.driver_connection
    if hasattr(connection, "ensure_connection") and hasattr(connection, "vendor"):  # Django's connection
        connection.ensure_connection()
        return connection.connection
    return connection


def _is_async(connection: Any) -> bool:
    return hasattr(connection, "sync_session") or hasattr(connection, "sync_connection")
