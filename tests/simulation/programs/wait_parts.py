"""Parts of a program that wait for time or events."""

from __future__ import annotations

from typing import Any

from holdfast.errors import WaitForEventTimeoutError
from holdfast.workflow.context import Context
from simulation.programs.program import LATE, PARCEL
from simulation.programs.step_parts import PartKinds


class WaitParts:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def kinds(self) -> PartKinds:
        return {"sleep": self._sleep, "event": self._event, "messages": self._messages, "parcels": self._parcels}

    async def _sleep(self, key: str, ms: int) -> None:
        await self._ctx.sleep(key, ms / 1000)

    async def _event(self, key: str, type_: str, ms: int) -> Any:
        try:
            return (await self._ctx.wait_for_event(key, type=type_, timeout=ms / 1000)).payload
        except WaitForEventTimeoutError:
            return LATE

    async def _messages(self, key: str, topic: str, n: int, ms: int) -> list[Any]:
        payloads = [await self._event(f"{key}.{i}", topic, ms) for i in range(n)]
        return [number for number in payloads if number != LATE]

    async def _parcels(self, key: str, n: int, ms: int) -> list[int]:
        payloads = [await self._event(f"{key}.{i}", PARCEL, ms) for i in range(n)]
        return [parcel.number for parcel in payloads if parcel != LATE]
