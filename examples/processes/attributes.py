"""Attributes of a run: indexed search attributes to find it by, and a memo that is only shown.

Run it: python examples/processes/attributes.py
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast import Context, Holdfast

app = Holdfast("sqlite://")


@dataclass
class Order:
    customer: str
    total: int


@app.workflow
async def order(ctx: Context, order: Order) -> None:
    ctx.set_search(status="processing", customer=order.customer, total=order.total, tags=["web", "eu"])
    ctx.set_memo(notes="priority customer", source="web")
    await ctx.wait_for_event("ship", type="ship")
    ctx.set_search(status="shipped")  # the others stay


async def main() -> None:
    async with app:
        for number, (customer, total) in enumerate([("ann", 40), ("ann", 250), ("bob", 900)], 1):
            run = await app.start(order, Order(customer, total), id=f"order-{number}", search={"status": "new"})
            while (await run.status()).status != "waiting":
                await asyncio.sleep(0.01)

        async def found(**search: Any) -> list[str]:
            return sorted(item.id for item in (await app.list(order, search=search)).items)

        print("of ann:", await found(customer="ann"))
        print("of 100 and more:", await found(total=(">=", 100)))
        print("both:", await found(customer="ann", total=(">=", 100)))
        print("from the web:", await found(tags="web"))

        await run.send_event("ship")
        await run.result()
        print("shipped:", await found(status="shipped"), "processing:", await found(status="processing"))
        print((await run.describe()).memo)


if __name__ == "__main__":
    asyncio.run(main())
