"""A worker process whose limited step records when it is entered and left, in a database of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import apsw

from holdfast import Context, Holdfast, WorkerConfig


def make_app(url: str, journal: str, lease: str = "2 seconds") -> Holdfast:
    app = Holdfast(url, worker=WorkerConfig(lease=lease, poll="100 ms", concurrency=50, max_losses=1000))
    bank = app.limit("bank", concurrency=5)
    tenants = app.limit("tenants", fair=True)

    def record(event: str, n: int) -> None:
        # Not the standard library's SQLite: an old one may lose rows of a WAL file that many processes open and close.
        connection = apsw.Connection(journal)
        connection.set_busy_timeout(30_000)
        connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (time.time(), os.getpid(), n, event))
        connection.close()

    @app.step(limits=[bank])
    async def visit(n: int) -> int:
        record("enter", n)
        try:
            await asyncio.sleep(0.03)
        except asyncio.CancelledError:  # the worker lost its lease
            record("cancelled", n)
            raise
        record("leave", n)
        return n

    @app.workflow(limits=[tenants.by(lambda n: n % 3)])
    async def tour(ctx: Context, n: int) -> int:
        return await visit(n)

    return app


async def main(url: str, journal: str, lease: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with make_app(url, journal, lease):
        print("ready", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
