"""Tasks of a run that wait for another run's end or reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Waiters:
    """Futures that wait for an end (by pid) or for a reply (by key of the ask)."""

    def __init__(self, make_future: Callable[[], asyncio.Future[Any]]) -> None:
        self._make_future = make_future
        self._futures: dict[str, list[asyncio.Future[Any]]] = {}

    def __bool__(self) -> bool:
        return any(self._futures.values())

    def awaited(self) -> list[tuple[str, list[asyncio.Future[Any]]]]:
        """The awaited pids and keys, each with the futures of the tasks that wait."""
        return [(what, list(futures)) for what, futures in self._futures.items() if futures]

    async def wait(self, what: str) -> Any:
        """Wait for an end (``what``: the pid) or for a reply (``what``: the key of the ask)."""
        future = self._make_future()
        self._futures.setdefault(what, []).append(future)
        try:
            return await future
        finally:
            futures = self._futures.get(what)
            if futures and future in futures:
                futures.remove(future)

    def resolve(self, what: str, value: Any) -> None:
        for future in self._futures.pop(what, ()):
            if not future.done():
                future.set_result(value)
