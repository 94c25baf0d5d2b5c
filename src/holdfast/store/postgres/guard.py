"""Runs users' statements inside a commit, and rejects those that change the engine's tables.

PostgreSQL has no hook that is called for each statement. But a transaction keeps the lock of every table
that it wrote to or altered, in whatever way, until it ends. The guard therefore looks for the engine's tables among the
locks, after users' statements and before the store's own; if it finds one, the transaction is rolled back. Reading is
allowed: the store's schema is the last one in the search path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

from holdfast.store.postgres.errors import is_environment, is_unique_violation
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Connection, Tx
from holdfast.store.protocol import Committed, Statement, Verdict

STATEMENT_ERRORS: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    TypeError,
    ValueError,
    OverflowError,
)
"""Errors that a statement itself can cause; ``is_environment`` tells them from those of the environment."""

_COMMENT = r"--[^\n]*|/\*.*?\*/"
_FIRST_WORD = re.compile(rf"(?:\s|{_COMMENT})*([A-Za-z]*)", re.DOTALL)
_TRANSACTION_WORDS = {"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE"}
_PLACEHOLDER = re.compile(
    rf"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \$([A-Za-z_]*)\$.*?\$\1\$ | {_COMMENT}
        | (?P<numbered>\$\d+) | (?P<mark>\?)""",
    re.DOTALL | re.VERBOSE,
)


class Refused(Exception):
    """Raised for a statement that is not allowed."""


class Guard:
    """Checks transactions against the engine's relations, as they were when the store was opened."""

    def __init__(self, relations: Sequence[int]) -> None:
        self._relations = relations

    async def prepare(self, tx: Tx) -> None:
        """Append the store's schema to the transaction's search path, so that unqualified names find its tables."""
        await tx.connection.fetchval(statements("commit", tx.schema)["search_path"], f'"{tx.schema}"')

    async def run(self, tx: Tx, user_statements: Iterable[Statement]) -> Committed | None:
        """Execute the statements; returns REJECTED if one fails because of the statement itself."""
        try:
            await self.prepare(tx)
            for statement in user_statements:
                await execute(tx.connection, statement)
            refusal = await self.refusal(tx)
        except STATEMENT_ERRORS as error:
            if is_environment(error, tx.connection):
                raise
            return Committed(Verdict.REJECTED, unique=is_unique_violation(error), message=str(error))
        except Refused as error:
            refusal = str(error)
        return None if refusal is None else Committed(Verdict.REJECTED, message=refusal)

    async def refusal(self, tx: Tx) -> str | None:
        """The reason why this transaction must not be committed; None if it may be."""
        name = await tx.connection.fetchval(statements("commit", tx.schema)["changed_relation"], self._relations)
        if name is None:
            return None
        return f"a step's statement may not change {name}: tables named holdfast_* are the engine's"


async def execute(connection: Connection, statement: Statement) -> tuple[list[Any], str]:
    """Run one statement; returns its rows and the server's status message.

    The statement is always prepared: PostgreSQL refuses to prepare a text with several statements.
    """
    word = _FIRST_WORD.match(statement.sql)
    if word is not None and word[1].upper() in _TRANSACTION_WORDS:
        raise Refused(
            f"a step's statement may not {word[1].upper()}: the step's commit is the transaction, all or nothing"
        )
    prepared = await connection.prepare(numbered(statement))
    rows = await prepared.fetch(*statement.args)
    if not connection.is_in_transaction():
        raise Refused("a step's statement may not end the transaction")
    return rows, prepared.get_statusmsg()


def numbered(statement: Statement) -> str:
    """The statement's text with question-mark placeholders, as other databases have them, replaced by $1, $2 and so on.

    Unchanged if the text has numbered placeholders, or if the number of question marks is not the number of arguments:
    PostgreSQL also has operators with question marks.
    """
    found = list(_PLACEHOLDER.finditer(statement.sql))
    marks = [match for match in found if match["mark"]]
    if not marks or len(marks) != len(statement.args) or any(match["numbered"] for match in found):
        return statement.sql
    parts, end = [], 0
    for number, match in enumerate(marks, 1):
        parts += [statement.sql[end : match.start()], f"${number}"]
        end = match.end()
    return "".join([*parts, statement.sql[end:]])
