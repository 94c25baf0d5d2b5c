"""A connection to the file: opened again after it broke, and with its own checkpoints of the WAL.

The connection is also the transaction (``Tx``) in which intents run. This module does not depend on jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import apsw

from holdfast.store.protocol import Committed
from holdfast.store.sqlite.errors import BROKEN
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.opening import BUSY_S, disable_checkpoint_on_close
from holdfast.store.sqlite.tx import Tx

_CHECKPOINT_PAGES = 2_000
_RESTART_PAGES = 65_536
_RESTART_TIMEOUT_MS = 200


class StoreConnection:
    """One connection of a store; a ``Tx``. The caller makes sure that one thread at a time uses it.

    ``connect`` is called for the first use, and again after the connection broke. If the system failed to read or
    write the file, ``recover`` is called before that, and its argument closes the connection that broke. ``begin``
    is the statement that begins a transaction. ``check_file`` is called in each transaction, which fails if it
    raises.
    """

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        recover: Callable[[Callable[[], None]], None],
        begin: str,
        now: Callable[[], int],
        guard: Guard,
        check_file: Callable[[], None],
    ) -> None:
        self.connection: apsw.Connection
        self.connected = False
        self.now = 0
        self.inline = False
        self.guard = guard
        self.rejections: dict[int, Committed] = {}
        self.before_commit: Callable[[Tx], None] | None = None
        """Called at the end of each transaction; set once the program uses limits."""
        self._connect = connect
        self._recover = recover
        self._recovery_due = False
        self._broken: apsw.Connection | None = None
        """Stays open until ``recover``: the wal-index is removed with its last connection, and it alone knows where the
        remains of a failed commit begin."""
        self._begin = begin
        self._clock = now
        self._check_file = check_file
        self._wal_pages = 0

    # --- the transaction

    @property
    def in_transaction(self) -> bool:
        return self.connected and self.connection.in_transaction

    def begin(self) -> None:
        """Begin a transaction. The caller calls ``prepare`` before the first read or write."""
        self.connection.execute(self._begin)

    def begin_checked(self) -> None:
        """Begin a transaction and check the file."""
        self.begin()
        try:
            self._check_file()
        except BaseException:
            self.roll_back()
            raise

    def prepare(self) -> None:
        """Check the file and set ``now``; called in every transaction before it reads or writes."""
        self._check_file()
        self.now = self._clock()

    def roll_back(self) -> None:
        try:
            if self.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error as error:
            self._discard(error)  # closing rolls back too

    # --- the connection

    def reconnect(self) -> None:
        if self.connected:
            return
        if self._recovery_due:
            self._recover(self._close_broken)
            self._recovery_due = False
        self.connection = self._connect()
        # Replaces SQLite's automatic checkpoint inside COMMIT, for which the callers would wait.
        self.connection.set_wal_hook(self._note_wal_pages)
        self.connected = True

    def disconnect(self) -> None:
        self._close_broken()
        if self.connected:
            self.connected = False
            with suppress(apsw.Error):  # the connection is discarded in any case
                self.connection.close(force=True)

    def _close_broken(self) -> None:
        broken, self._broken = self._broken, None
        if broken is not None:
            with suppress(apsw.Error):  # the connection is discarded in any case
                broken.close(force=True)

    def _discard(self, error: Exception) -> None:
        """Give the connection up after an error. It writes nothing more, not even the checkpoint of the last close."""
        self._recovery_due = self._recovery_due or isinstance(error, apsw.IOError)
        if not self.connected:
            return
        disable_checkpoint_on_close(self.connection)
        if self._recovery_due and not self.connection.in_transaction:  # an open transaction would keep its locks
            self._close_broken()
            self._broken, self.connected = self.connection, False
        else:
            self.disconnect()

    def on_error(self, error: Exception) -> None:
        """Close a broken connection; after an error of a full disk, restart the WAL at the next checkpoint."""
        if isinstance(error, BROKEN):
            self._discard(error)
        elif isinstance(error, apsw.FullError):
            self._wal_pages = _RESTART_PAGES  # a restarted WAL reuses its file and needs no more disk space

    # --- checkpoints

    def _note_wal_pages(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    @property
    def checkpoint_due(self) -> bool:
        return self._wal_pages >= _CHECKPOINT_PAGES

    def checkpoint(self) -> None:
        """Checkpoint the WAL when it is long; wait for readers only when it is very long."""
        if not self.checkpoint_due or not self.connected:
            return
        too_long = self._wal_pages >= _RESTART_PAGES
        self._wal_pages = 0
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if too_long:
                self.connection.set_busy_timeout(_RESTART_TIMEOUT_MS)
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.BusyError, apsw.LockedError):
            pass  # another connection reads or checkpoints; the next commit tries again
        except apsw.Error as error:
            self._discard(error)
        finally:
            if too_long and self.connected:
                self.connection.set_busy_timeout(BUSY_S * 1000)
