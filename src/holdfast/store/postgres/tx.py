"""What an intent sees of the database: a connection, the schema, and whose call it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

Row = Sequence[Any]
A = TypeVar("A")
R = TypeVar("R")


class Connection(Protocol):
    """The part of ``asyncpg.Connection`` in use."""

    async def fetch(self, query: str, *args: Any, timeout: float | None = ...) -> list[Mapping[str, Any]]: ...

    async def fetchrow(self, query: str, *args: Any) -> Any: ...

    async def fetchval(self, query: str, *args: Any) -> Any: ...

    async def execute(self, query: str, *args: Any, timeout: float | None = ...) -> str: ...

    async def prepare(self, query: str) -> Any: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    def get_settings(self) -> Any: ...

    def terminate(self) -> None: ...


class Tx(NamedTuple):
    connection: Connection
    schema: str
    now: int | None
    """None: the database's clock."""
    by: str
    """The store that writes: others are told of it, and it is not told of its own writes."""
    again: bool = False
    """An earlier try of this call may have been done: its connection broke before the answer."""
    quiet: bool = False
    """No other store listens, so that a single write need not be told."""


Work = Callable[[Tx, A], Awaitable[R]]
"""An intent. It may run again on another connection if the first one broke, so it must know its own traces."""
