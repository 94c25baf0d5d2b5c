"""Detection of failovers: a server that may lack the last commits of the one before has taken over.

The store asks each new connection for the timeline of its server. A change means that a standby was promoted or a
backup restored. The database function that returns the timeline also ends all claims of earlier timelines, before any
other statement of this store reaches the new server (``functions/failovers.sql``).
"""

from __future__ import annotations

import logging

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Failovers

_log = logging.getLogger("holdfast")


class Timeline:
    """The timeline of the server that the store writes to."""

    def __init__(self, where: str, failovers: Failovers) -> None:
        self.known: int | None = None
        """None until the store is open: the database may not have the functions before."""
        self._where = where
        self._failovers = failovers

    def found(self, timeline: int) -> None:
        """Record the timeline of a connection; notifies the listeners if it is a new one."""
        known, self.known = self.known, timeline
        if known is not None and known != timeline:
            _log.warning(
                "%s has failed over to another server, or was restored: all claims have ended, "
                "and runs that were in progress are claimed again",
                self._where,
            )
            self._failovers.notify()


async def enter_timeline(tx: Tx, _: None) -> int | None:
    """Tell the server that this store begins to use it; returns the server's timeline, None for a standby."""
    sql = statements("failovers", tx.schema)["enter_timeline"]
    timeline: int | None = await tx.connection.fetchval(sql, tx.now, tx.store_id)
    return timeline
