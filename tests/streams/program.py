"""A worker process whose steps write the numbers from 0 to a stream; a first attempt can wait halfway to be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection

from holdfast import Context, Holdfast, Retry, WorkerConfig, step_info

ITEMS = 60


def make_app(url: str, killed_in: Collection[str] = ()) -> Holdfast:
    """``killed_in``: names of steps whose first attempt does not go on by itself."""
    app = Holdfast(url, worker=WorkerConfig(lease="1 second", poll="50 ms", concurrency=50))

    @app.step(retry=Retry(limit=20, delay="0 seconds", backoff="constant"))
    async def count(name: str) -> int:
        out = step_info().stream("out")
        for n in range(ITEMS):
            await out.write([name, n])
            waits = name in killed_in and n == ITEMS // 2 and step_info().attempt == 1
            await asyncio.sleep(3600 if waits else 0.005)
        return ITEMS

    @app.workflow
    async def counting(ctx: Context) -> int:
        await ctx.stream("out").write("begin")
        done = sum([await count("a"), await count("b")])
        await ctx.stream("out").write("end")
        await ctx.stream("out").close()
        return done

    return app


async def main(url: str) -> None:
    async with make_app(url, killed_in=("a", "b")):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
