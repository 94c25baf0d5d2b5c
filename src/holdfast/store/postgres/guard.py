"""Runs users' statements inside a commit, and keeps them off what is not theirs.

PostgreSQL has no hook that sees each statement. It has something better: a transaction keeps the lock of every table
that it wrote to or altered, in whatever way, until it ends. So the engine's tables are looked up among the locks after
users' statements and before the store's own; if one is there, nothing of the transaction is kept. Reading is allowed:
the store's schema is the last one in the search path.
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

FAULTS: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    TypeError,
    ValueError,
    OverflowError,
)
"""How a statement fails by its own fault, if it is not the environment's."""

_COMMENT = r"--[^\n]*|/\*.*?\*/"
_FIRST_WORD = re.compile(rf"(?:\s|{_COMMENT})*([A-Za-z]*)", re.DOTALL)
_ENDING = {"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE"}
_PLACEHOLDER = re.compile(
    rf"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \$([A-Za-z_]*)\$.*?\$\1\$ | {_COMMENT}
        | (?P<numbered>\$\d+) | (?P<mark>\?)""",
    re.DOTALL | re.VERBOSE,
)


class Refused(Exception):  # noqa: N818  (a signal between modules, never an answer)
    """A statement that may not be run."""


class Guard:
    """Knows the engine's relations, as they were when the store was opened."""

    def __init__(self, relations: Sequence[int]) -> None:
        self._relations = relations

    async def prepare(self, tx: Tx) -> None:
        """Let unqualified names find the engine's tables, for this transaction."""
        await tx.connection.fetchval(statements("commit", tx.schema)["search_path"], f'"{tx.schema}"')

    async def run(self, tx: Tx, asked: Iterable[Statement]) -> Committed | None:
        """Execute them; answers a REJECTED if one fails by its own fault."""
        try:
            await self.prepare(tx)
            for statement in asked:
                await execute(tx.connection, statement)
            refusal = await self.refusal(tx)
        except FAULTS as error:
            if is_environment(error, tx.connection):
                raise
            return Committed(Verdict.REJECTED, unique=is_unique_violation(error), message=str(error))
        except Refused as error:
            refusal = str(error)
        return None if refusal is None else Committed(Verdict.REJECTED, message=refusal)

    async def refusal(self, tx: Tx) -> str | None:
        """Why this transaction must not be committed."""
        name = await tx.connection.fetchval(statements("commit", tx.schema)["touched"], self._relations)
        if name is None:
            return None
        return f"a step's statement may not change {name}: tables named holdfast_* are the engine's"


async def execute(connection: Connection, statement: Statement) -> tuple[list[Any], str]:
    """The rows, and the server's word for what was done.

    Always prepared: that way a text is one statement and no more.
    """
    word = _FIRST_WORD.match(statement.sql)
    if word is not None and word[1].upper() in _ENDING:
        raise Refused(
            f"a step's statement may not {word[1].upper()}: the step's commit is the transaction, all or nothing"
        )
    prepared = await connection.prepare(numbered(statement))
    rows = await prepared.fetch(*statement.args)
    if not connection.is_in_transaction():
        raise Refused("a step's statement may not end the transaction")
    return rows, prepared.get_statusmsg()


def numbered(statement: Statement) -> str:
    """Its text with $1, $2 where it has a question mark for each argument, as other databases write them.

    Left alone if it has numbers of its own, or no arguments: PostgreSQL also has operators with question marks.
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
