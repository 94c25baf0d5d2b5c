"""Children: wait for a child (``ctx.run``), or start it, continue, and receive its end from ``ctx.events``.

Run it: python examples/processes/spawn_monitored.py
"""

import asyncio

from holdfast import Context, Exit, Holdfast

app = Holdfast("sqlite://")


@app.workflow
async def greet(ctx: Context, name: str) -> str:
    await ctx.sleep("think", "20 ms")
    return f"hello {name} from a child of {ctx.info.parent}"


@app.workflow
async def one_after_the_other(ctx: Context) -> str:
    return await ctx.run(greet, "ann")


@app.workflow
async def at_once(ctx: Context, names: list[str]) -> list[str]:
    for name in names:
        await ctx.spawn(greet, name, id=f"greet-{name}")  # the child is stored when this returns
    ended: list[str] = []
    while len(ended) < len(names):
        event = await ctx.events.receive()
        if isinstance(event, Exit):
            ended.append(f"{event.pid}: {event.result if event.error is None else event.error}")
    return sorted(ended)


@app.workflow
async def gathered(ctx: Context, names: list[str]) -> list[str]:
    return await asyncio.gather(*(ctx.run(greet, name) for name in names))


async def main() -> None:
    async with app:
        print(await (await app.start(one_after_the_other, id="p-1")).result())
        for line in await (await app.start(at_once, ["bob", "cem"], id="p-2")).result():
            print(line)
        run = await app.start(gathered, ["dana", "eli"], id="p-3")
        print(await run.result())
        print([child.status for child in (await run.describe()).children])


if __name__ == "__main__":
    asyncio.run(main())
