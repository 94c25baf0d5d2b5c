"""Runs users' statements inside a commit, and keeps them off what is not theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import apsw

from holdfast.store.protocol import Committed, Statement, Verdict
from holdfast.store.sqlite.errors import ENVIRONMENT, is_unique_violation
from holdfast.store.sqlite.tx import Connection

_NEVER = {
    apsw.SQLITE_TRANSACTION: "begin or end a transaction: the step's commit is the transaction",
    apsw.SQLITE_SAVEPOINT: "use savepoints: the step's commit is all or nothing",
    apsw.SQLITE_ATTACH: "attach a database",
    apsw.SQLITE_DETACH: "detach a database",
    apsw.SQLITE_PRAGMA: "use PRAGMA",
}
_WRITES = {
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
_WRITES_OF_SECOND = {  # these name the table in the second argument
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_CREATE_TEMP_TRIGGER,
    apsw.SQLITE_ALTER_TABLE,
}
_MISUSE = (apsw.Error, TypeError, ValueError, OverflowError)


class TransactionGone(Exception):  # noqa: N818  (a signal between modules, never an answer)
    """A user's statement rolled the whole transaction back (``OR ROLLBACK``): the innocent must run again."""


class Guard:
    """The connection's authorizer. Always there: to install one throws all prepared statements away."""

    def __init__(self) -> None:
        self._watching = False
        self.refusal: str | None = None
        """Why a statement was denied, of those that were watched last."""

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if not self._watching:
            return apsw.SQLITE_OK
        refusal = _refusal(action, first, second)
        if refusal is None:
            return apsw.SQLITE_OK
        self.refusal = refusal
        return apsw.SQLITE_DENY

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What is prepared meanwhile is a user's."""
        self._watching, self.refusal = True, None
        try:
            yield
        finally:
            self._watching = False

    def run(self, connection: Connection, statements: Iterable[Statement]) -> Committed | None:
        """Execute them; answers a REJECTED if one fails by its own fault."""
        try:
            with self.watching():
                for statement in statements:
                    # Not from the cache: the guard does not see a statement of the store's own that is there.
                    for _ in connection.execute(statement.sql, statement.args, can_cache=False):
                        pass
        except ENVIRONMENT:
            raise
        except _MISUSE as error:
            unique = isinstance(error, apsw.Error) and is_unique_violation(error)
            return Committed(Verdict.REJECTED, unique=unique, message=self.refusal or str(error))
        return None


def _refusal(action: int, first: str | None, second: str | None) -> str | None:
    if action in _NEVER:
        return f"a step's statement may not {_NEVER[action]}"
    name = first if action in _WRITES else second if action in _WRITES_OF_SECOND else None
    if name is not None and name.lower().startswith("holdfast_"):
        return f"a step's statement may not change {name}: tables named holdfast_* are the engine's"
    return None
