"""Executes users' statements inside a commit, and denies them access to the engine's tables and to transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import apsw

from holdfast.store.protocol import Committed, Statement, Verdict
from holdfast.store.sqlite.errors import ENVIRONMENT, is_unique_violation
from holdfast.store.sqlite.tx import Connection

_FORBIDDEN = {
    apsw.SQLITE_TRANSACTION: "begin or end a transaction: the step's commit is the transaction",
    apsw.SQLITE_SAVEPOINT: "use savepoints: the step's commit is all or nothing",
    apsw.SQLITE_ATTACH: "attach a database",
    apsw.SQLITE_DETACH: "detach a database",
    apsw.SQLITE_PRAGMA: "use PRAGMA",
}
_TABLE_IN_FIRST = {
    apsw.SQLITE_INSERT,
    apsw.SQLITE_UPDATE,
    apsw.SQLITE_DELETE,
    apsw.SQLITE_CREATE_TABLE,
    apsw.SQLITE_CREATE_VIEW,
    apsw.SQLITE_CREATE_VTABLE,
    apsw.SQLITE_DROP_TABLE,
    apsw.SQLITE_DROP_VIEW,
    apsw.SQLITE_DROP_VTABLE,
}
_ROW_CHANGES = {apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_TABLE_IN_SECOND = {  # these name the table in the second argument
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_CREATE_TEMP_TRIGGER,
    apsw.SQLITE_ALTER_TABLE,
}
_STATEMENT_ERRORS = (apsw.Error, TypeError, ValueError, OverflowError)


class TransactionRolledBack(Exception):
    """A user's statement rolled the whole transaction back (``OR ROLLBACK``); the other jobs must run again."""


class Guard:
    """The connection's authorizer. Always installed, because installing one invalidates all prepared statements."""

    def __init__(self) -> None:
        self._enforcing = False
        self.refusal: str | None = None
        """The reason for which the last enforced statement was denied; None if it was not."""

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if not self._enforcing:
            return apsw.SQLITE_OK
        refusal = _refusal(action, first, second)
        if refusal is None:
            return apsw.SQLITE_OK
        self.refusal = refusal
        return apsw.SQLITE_DENY

    @contextmanager
    def enforcing(self) -> Iterator[None]:
        """Check the statements that are prepared in this context as a user's."""
        self._enforcing, self.refusal = True, None
        try:
            yield
        finally:
            self._enforcing = False

    def run(self, connection: Connection, statements: Iterable[Statement]) -> Committed | None:
        """Execute the statements; returns REJECTED if one fails because of the statement itself."""
        try:
            with self.enforcing():
                for statement in statements:
                    # Not cached: SQLite does not call the authorizer for a statement that is prepared already.
                    for _ in connection.execute(statement.sql, statement.args, can_cache=False):
                        pass
        except ENVIRONMENT:
            raise
        except _STATEMENT_ERRORS as error:
            unique = isinstance(error, apsw.Error) and is_unique_violation(error)
            return Committed(Verdict.REJECTED, unique=unique, message=self.refusal or str(error))
        return None


def _refusal(action: int, first: str | None, second: str | None) -> str | None:
    if action in _FORBIDDEN:
        return f"a step's statement may not {_FORBIDDEN[action]}"
    name = first if action in _TABLE_IN_FIRST else second if action in _TABLE_IN_SECOND else None
    if name is not None and name.lower().startswith("holdfast_"):
        return f"a step's statement may not change {name}: tables named holdfast_* are the engine's"
    if name == "sqlite_sequence" and action in _ROW_CHANGES:
        return "a step's statement may not change sqlite_sequence: ids of runs are never used again"
    return None
