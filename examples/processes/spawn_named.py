"""Ids make starts idempotent. ``on_conflict`` and ``on_reuse`` decide what a start with a taken id does.

Run it: python examples/processes/spawn_named.py
"""

import asyncio

from holdfast import Context, Holdfast, InstanceExistsError

app = Holdfast("sqlite://")


@app.workflow
async def order(ctx: Context, item: str) -> str:
    await ctx.wait_for_event("ship", type="ship")
    return f"{item} shipped"


@app.workflow
async def shop(ctx: Context) -> list[str]:
    first = await ctx.spawn(order, "tea", id="order-1")
    same = await ctx.spawn(order, "coffee", id="order-1")  # "use_existing": its input is ignored
    seen = [f"same run: {first.pid == same.pid}"]
    try:
        await ctx.spawn(order, "coffee", id="order-1", on_conflict="fail")
    except InstanceExistsError as error:
        seen.append(str(error))
    await ctx.send(first.pid, "ship")
    seen.append(await same.result())
    return seen


async def main() -> None:
    async with app:
        for line in await (await app.start(shop)).result():
            print(line)

        await app.start(order, "milk", id="order-2")
        new = await app.start(order, "bread", id="order-2", on_conflict="terminate_existing")
        print("run number", (await new.describe()).run_number)
        await new.send_event("ship")
        print(await new.result())

        again = await app.start(
            order, "cake", id="order-2"
        )  # the run has ended: "use_existing" returns it, with its result
        print(await again.result())
        third = await app.start(order, "cake", id="order-2", on_reuse="allow")
        await third.send_event("ship")
        print(await third.result())
        try:
            await app.start(order, "cake", id="order-2", on_reuse="reject")
        except InstanceExistsError as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
