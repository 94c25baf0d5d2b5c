"""The base classes of requests whose type states the type of their reply."""

from __future__ import annotations

from typing import Generic, TypeVar

R = TypeVar("R", covariant=True)


class Query(Generic[R]):
    """A request of ``Store.read``, with the type of the reply. Reading changes nothing and needs no fence."""

    __slots__ = ()


class OutboxRequest(Generic[R]):
    """A request of ``Store.outbox``, with the type of the reply."""

    __slots__ = ()


class MaintenanceRequest(Generic[R]):
    """A request of ``Store.maintain``, with the type of the reply."""

    __slots__ = ()
