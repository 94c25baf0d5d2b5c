"""The program of a worker process: it works until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from crash.workload import SideFile
from holdfast.ports import SystemClock

from .workload import make_app


def work(*, url: str, side: str, clock_off: float = 0, **worker: Any) -> None:
    """Run a worker. ``clock_off``: seconds by which the clock of its machine is wrong."""
    if clock_off:
        set_clock(clock_off)
    asyncio.run(_work(url, Path(side), worker))


async def _work(url: str, side: Path, worker: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with make_app(url, side, **worker):
        SideFile(side).write({"open": True})
        await stop.wait()


def set_clock(seconds: float) -> None:
    """Set the clock wrong. The engine reads the system time in one place only, which another test checks."""
    off = timedelta(seconds=seconds)
    system_ms = SystemClock.now_ms
    SystemClock.now = lambda _self: datetime.now(UTC) + off  # type: ignore[method-assign]
    SystemClock.now_ms = lambda self: system_ms(self) + round(seconds * 1000)  # type: ignore[method-assign]
