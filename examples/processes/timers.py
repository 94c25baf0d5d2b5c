"""Durable timers: sleeps, a timeout, a timer that is stopped and set again, ticks. Tested in virtual time.

Run it: python examples/processes/timers.py
"""

import asyncio

from holdfast import Context, Holdfast, select
from holdfast.testing import Harness

app = Holdfast("sqlite://")


@app.workflow
async def sleeps(ctx: Context) -> float:
    start = ctx.now()
    await ctx.sleep("a day", "24h")
    await asyncio.sleep(0.1)  # the same without a name
    await ctx.sleep_until("morning", start.replace(hour=6) + (ctx.now() - start))
    return (ctx.now() - start).total_seconds() / 3600


@app.workflow
async def watchdog(ctx: Context) -> list[str]:
    """Ends when no ``pat`` message comes within a minute."""
    pats, timer, seen = ctx.listen("pat"), ctx.timer("1 minute"), []
    while (chosen := await select(pats, timer)).channel is pats:
        seen.append(f"{ctx.now():%H:%M:%S} {chosen.value}")
        timer.reset("1 minute")
    return [*seen, f"{ctx.now():%H:%M:%S} bites"]


@app.workflow
async def three_ticks(ctx: Context) -> list[str]:
    ticks = []
    async for now in ctx.every("1 hour"):
        ticks.append(f"{now:%H:%M}")
        if len(ticks) == 3:
            break
    return ticks


async def main() -> None:
    async with Harness(app) as h:  # virtual time: two days pass in milliseconds
        runs = [await h.start(workflow) for workflow in (sleeps, watchdog, three_ticks)]
        await h.advance("50 seconds")
        await runs[1].send_event("pat", "good dog")
        await h.restart()  # everything in memory is dropped: timers survive
        await h.advance("2 days")
        print("hours slept:", round((await runs[0].status()).output, 1))
        print((await runs[1].status()).output)
        print((await runs[2].status()).output)


if __name__ == "__main__":
    asyncio.run(main())
