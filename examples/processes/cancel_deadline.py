"""Cancelling: the code gets ``CancelledError`` and may clean up by steps; at the deadline the run is terminated.

Run it: python examples/processes/cancel_deadline.py
"""

import asyncio

from holdfast import Cancel, Context, Holdfast, RunCancelledError, RunTerminatedError

app = Holdfast("sqlite://")
released: list[str] = []


@app.step
async def release(what: str) -> None:
    released.append(what)


@app.workflow
async def tidy(ctx: Context) -> str:
    try:
        await ctx.sleep("work", "1 day")
    except asyncio.CancelledError:
        await release("tidy")  # an ordinary step: durable, retried
        raise  # the run ends as cancelled; a return would complete it
    return "worked"


@app.workflow
async def stubborn(ctx: Context) -> None:
    try:
        await ctx.sleep("work", "1 day")
    finally:
        await ctx.sleep("clean up for ever", "1 day")


@app.workflow(cancel="event")
async def polite(ctx: Context) -> str:
    """Receives the request as an event; nothing is raised."""
    event = await ctx.events.receive()
    assert isinstance(event, Cancel)
    return f"stopped by myself: {event.reason}"


async def main() -> None:
    async with app:
        for workflow in (tidy, stubborn, polite):
            run = await app.start(workflow)
            while (await run.status()).status != "waiting":
                await asyncio.sleep(0.01)
            await run.cancel("closing time", deadline="1 second")
            try:
                print(await run.result())
            except (RunCancelledError, RunTerminatedError) as error:
                print(type(error).__name__)
        print("released:", released)


if __name__ == "__main__":
    asyncio.run(main())
