"""Changing code while runs are open: ``ctx.version`` returns 1 for a run from before the change, 2 for a new one.

Run it: python examples/processes/versioning.py
"""

import asyncio
import tempfile
from pathlib import Path

from holdfast import Context, Holdfast

folder = tempfile.TemporaryDirectory()
url = f"sqlite:///{Path(folder.name) / 'shop.db'}"
before, after = Holdfast(url), Holdfast(url)  # the releases before and after the change


async def check(order: str) -> str:
    return f"{order} is fine"


async def old_payment(order: str) -> str:
    return f"{order} paid the old way"


async def new_payment(order: str) -> str:
    return f"{order} paid the new way"


@before.workflow(name="pay")
async def pay_yesterday(ctx: Context, order: str) -> str:
    await ctx.do("check", check, order)
    await ctx.wait_for_event("go", type="go")
    return await ctx.do("payment", old_payment, order)


@after.workflow(name="pay")
async def pay_today(ctx: Context, order: str) -> str:
    version = ctx.version("payment-v2", 1, 2)
    await ctx.do("check", check, order)
    await ctx.wait_for_event("go", type="go")
    if version == 1:
        return await ctx.do("payment", old_payment, order)
    return await ctx.do("payment v2", new_payment, order)


async def main() -> None:
    async with before:
        run = await before.start(pay_yesterday, "old order", id="order-1")
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.01)
    async with after:  # a deploy
        old = await after.get(pay_today, "order-1")
        new = await after.start(pay_today, "new order", id="order-2")
        for run in (old, new):
            await run.send_event("go")
            print(await run.result())
        print([(step.name, step.result) for step in (await new.history()).steps if step.type == "version"])


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
