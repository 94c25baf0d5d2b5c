"""An API with a quota: at most two calls at a time and twenty a second, over all runs and workers.

Run it: python examples/api_quota.py
"""

import asyncio
import tempfile
from pathlib import Path

from holdfast import Context, Holdfast, Rate

app = Holdfast(f"sqlite:///{Path(tempfile.mkdtemp()) / 'quota.db'}")
api = app.limit("weather api", concurrency=2, rate=Rate(20, per="1 second"))
inside: list[str] = []
counts: list[int] = []


@app.step(limits=[api])
async def fetch(city: str) -> str:
    inside.append(city)
    counts.append(len(inside))
    await asyncio.sleep(0.01)  # a real program calls the API here
    inside.remove(city)
    return f"sunny in {city}"


@app.workflow
async def forecast(_ctx: Context, city: str) -> str:
    return await fetch(city)


async def main() -> None:
    async with app:
        runs = [await app.start(forecast, f"city {n}") for n in range(10)]
        print(await runs[-1].result())
        for run in runs:
            await run.result()
        print(f"calls at the same time: at most {max(counts)}")
        await app.set_limit("weather api", concurrency=5, reason="a larger plan")
        print([(limit.name, limit.concurrency) for limit in await app.list_limits()])


if __name__ == "__main__":
    asyncio.run(main())
