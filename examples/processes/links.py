"""Watching runs: ``monitor`` reports any end; a ``link`` makes a run fail with the other, unless it traps links.

Run it: python examples/processes/links.py
"""

import asyncio

from holdfast import Context, Exit, Holdfast, LinkDown, RunFailedError

app = Holdfast("sqlite://")


@app.workflow
async def long_work(ctx: Context, iterations: int) -> str:
    for n in range(iterations):
        await ctx.sleep(f"iteration {n}", "10 ms")
    return f"{iterations} iterations"


@app.workflow
async def monitors(ctx: Context, pid: str) -> str:
    await ctx.monitor(pid)  # also for a run that another program started
    event = await ctx.events.receive()
    assert isinstance(event, Exit)
    return f"{event.pid} ended: {event.result}"


@app.workflow
async def traps(ctx: Context) -> list[str]:
    ctx.trap_links = True
    child = await ctx.spawn(long_work, 1000, id="trapped")
    await ctx.link(child.pid)
    await ctx.terminate(child.pid, "enough")
    seen = []
    for _ in range(2):  # a child is monitored as well
        match await ctx.events.receive():
            case LinkDown(pid, error):
                seen.append(f"link down: {pid}: {error}")
            case Exit(pid, error=error):
                seen.append(f"exit: {pid}: {error}")
    return seen


@app.workflow
async def falls_too(ctx: Context, pid: str) -> None:
    await ctx.link(pid)
    await ctx.sleep("for ever", "365 days")


async def main() -> None:
    async with app:
        short = await app.start(long_work, 3, id="short")
        print(await (await app.start(monitors, short.pid)).result())
        for line in await (await app.start(traps)).result():
            print(line)

        partner = await app.start(long_work, 1000, id="partner")
        linked = await app.start(falls_too, partner.pid, id="linked")
        while not (await linked.describe()).links:
            await asyncio.sleep(0.01)
        await partner.terminate("gone")
        try:
            await linked.result()
        except RunFailedError as error:
            print(error.error.name, error.error.message.partition(":")[0])


if __name__ == "__main__":
    asyncio.run(main())
