"""The program of the tests of leases: chain steps with leases of 2 and 6 s, on a worker with a lease of 30 s."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from holdfast import ChainTask, Holdfast, WorkerConfig
from holdfast.core import codec

LEASE_SECONDS = 2.0
"""The lease of chain ``leased``."""
LONG_LEASE_SECONDS = 6.0
"""The lease of chain ``long_leased``, longer than a busy test machine delays a heartbeat."""


def make_app(url: str, schema: str | None, side: str) -> Holdfast:
    app = Holdfast(url, **({} if schema is None else {"schema": schema}), worker=WorkerConfig(poll="100 ms"))

    async def only(task: ChainTask) -> Any:
        """Take ``params`` seconds in the first attempt; return at once in later attempts."""
        write(side, attempt=task.attempt)
        if task.attempt == 1:
            await asyncio.sleep(task.params)
        return task.attempt

    app.chain("leased").step("ONLY", lease=LEASE_SECONDS)(only)
    app.chain("long_leased").step("ONLY", lease=LONG_LEASE_SECONDS)(only)
    return app


def write(side: str, **line: Any) -> None:
    """Append a line in one unbuffered write, which is kept if the process is killed right after it."""
    with Path(side).open("ab", buffering=0) as file:
        file.write(codec.encode(line | {"pid": os.getpid()}, what="line") + b"\n")


def work(url: str, schema: str | None, side: str) -> None:
    """A worker that runs until it is killed."""

    async def main() -> None:
        async with make_app(url, schema, side):
            write(side, open=True)
            await asyncio.Event().wait()

    asyncio.run(main())
