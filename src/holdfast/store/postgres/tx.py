"""The arguments that every intent gets: a connection, the schema, the time and the calling store."""

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
    store_id: str
    """The id of the calling store: sent with notifications, so that a store can ignore its own."""
    is_retry: bool = False
    """An earlier attempt of this call may have been committed: its connection broke before the reply."""
    failed_over: bool = False
    """The call was made before a failover: its claims would belong to an earlier id of the worker."""


Work = Callable[[Tx, A], Awaitable[R]]
"""An intent. It is repeated on another connection if the first one broke, so it must recognise its own writes."""
