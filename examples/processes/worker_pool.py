"""Parallel work inside one run: tasks that share a channel of jobs, in the same order on every replay.

Run it: python examples/processes/worker_pool.py
"""

import asyncio
from dataclasses import dataclass

from holdfast import Channel, Context, Holdfast

app = Holdfast("sqlite://")


@dataclass
class Pool:
    workers: int = 3
    jobs: int = 6


@dataclass
class Done:
    worker: int
    job: int
    result: int


@app.workflow
async def pool(ctx: Context, size: Pool) -> list[Done]:
    jobs: Channel[int] = Channel(capacity=10)
    results: Channel[Done] = Channel(capacity=10)

    async def work(worker: int) -> None:
        async for job in jobs:  # ends when the channel is closed and empty
            await ctx.sleep(f"job {job}", "10 ms")  # durable
            await results.send(Done(worker, job, job * 2))

    async with asyncio.TaskGroup() as workers:
        for number in range(1, size.workers + 1):
            workers.create_task(work(number))
        for job in range(1, size.jobs + 1):
            await jobs.send(job)
        jobs.close()
        return [await results.receive() for _ in range(size.jobs)]


async def main() -> None:
    async with app:
        done = await (await app.start(pool, Pool())).result()
        print("total:", sum(item.result for item in done))
        print("by worker:", {worker: [d.job for d in done if d.worker == worker] for worker in (1, 2, 3)})


if __name__ == "__main__":
    asyncio.run(main())
