"""Queries on a direct connection, which are repeated while the server restarts.

Triggers forbid what the engine must never do: they write a line to the server's log, whatever becomes of the
transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from .server import Server

R = TypeVar("R")

_FORBIDDEN = "FORBIDDEN"
RETENTION = "retention"
"""The name of the only application that may delete rows; the engine never does."""
GUARDS = f"""
CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('application_name') = '{RETENTION}' THEN RETURN old; END IF;
    RAISE EXCEPTION '{_FORBIDDEN}: %', TG_ARGV[0];
END $$;
CREATE TRIGGER fact_never_changes BEFORE UPDATE OR DELETE ON holdfast.holdfast_fact
    FOR EACH ROW WHEN (old.state <> 7) EXECUTE FUNCTION forbid('a fact was changed');
CREATE TRIGGER run_never_goes BEFORE DELETE ON holdfast.holdfast_run
    FOR EACH ROW EXECUTE FUNCTION forbid('a run was deleted');
CREATE TRIGGER end_is_final AFTER UPDATE ON holdfast.holdfast_run
    FOR EACH ROW WHEN (old.completed_at IS NOT NULL
                       AND to_jsonb(old) - 'current' <> to_jsonb(new) - 'current')
    EXECUTE FUNCTION forbid('a finished run was changed');
CREATE TRIGGER event_never_goes BEFORE DELETE ON holdfast.holdfast_event
    FOR EACH ROW EXECUTE FUNCTION forbid('an event was deleted');
CREATE TRIGGER event_is_consumed_once BEFORE UPDATE ON holdfast.holdfast_event
    FOR EACH ROW WHEN (old.delivered_at IS NOT NULL AND (old.delivered_at, old.consumed_by)
                                                         IS DISTINCT FROM (new.delivered_at, new.consumed_by))
    EXECUTE FUNCTION forbid('an event was consumed twice');
CREATE TRIGGER epoch_only_rises BEFORE UPDATE ON holdfast.holdfast_task
    FOR EACH ROW WHEN (new.epoch < old.epoch) EXECUTE FUNCTION forbid('an epoch went back');
"""


class DatabaseProbe:
    """Queries one database, and finds violations in the server's log."""

    def __init__(self, server: Server, database: str, *, application: str = "tests") -> None:
        self._server = server
        self._database = database
        self._application = application
        self._connection: asyncpg.Connection[Any] | None = None
        self._log_start = len(server.log_text())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close(timeout=5)

    async def with_retry(self, call: Callable[[asyncpg.Connection[Any]], Awaitable[R]]) -> R:
        """Make a call; repeat it from the start while the server is unavailable."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await call(await self._connected())
                except (
                    OSError,
                    asyncpg.PostgresConnectionError,
                    asyncpg.CannotConnectNowError,
                    asyncpg.InterfaceError,
                    asyncpg.InternalClientError,  # used between the server's last message and its end
                ):
                    self._connection = None
                    await asyncio.sleep(0.05)
                except asyncpg.AdminShutdownError:
                    self._connection = None

    async def rows(self, sql: str, *args: Any) -> list[Any]:
        return await self.with_retry(lambda connection: connection.fetch(sql, *args))

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._server.connect(self._database, application=self._application)
        return self._connection

    async def one(self, sql: str, *args: Any) -> Any:
        [row] = await self.rows(sql, *args)
        return row[0]

    async def execute(self, sql: str) -> None:
        await (await self._connected()).execute(sql)

    def forbidden(self) -> list[str]:
        """Log lines of forbidden operations that the engine tried."""
        lines = self._server.log_text()[self._log_start :].splitlines()
        return [line for line in lines if _FORBIDDEN in line and "ERROR" in line]
