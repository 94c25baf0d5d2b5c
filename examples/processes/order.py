"""An order: charge, sleep, ship, and refund if it cannot be shipped.

Run it: python examples/processes/order.py
"""

import asyncio
from dataclasses import dataclass

from holdfast import Context, Holdfast, NonRetryableError

app = Holdfast("sqlite://")


@dataclass
class Order:
    id: str
    total: int
    address: str


@app.step
async def charge_payment(order: Order) -> str:
    if order.total > 1000:
        raise NonRetryableError("card declined")
    return f"payment-{order.id}"


@app.step
async def ship_order(order: Order) -> str:
    if not order.address:
        raise NonRetryableError("no address")
    return f"tracking-{order.id}"


@app.step
async def refund_payment(payment: str) -> str:
    return f"{payment} refunded"


@app.workflow
async def order_workflow(ctx: Context, order: Order) -> dict[str, str]:
    try:
        payment = await charge_payment(order)
    except NonRetryableError as error:
        return {"status": "failed", "error": str(error)}

    await ctx.sleep("cool off", "50 ms")  # "1 hour" would survive a restart just the same

    try:
        tracking = await ship_order(order)
    except NonRetryableError as error:
        return {"status": "failed", "error": str(error), "refund": await refund_payment(payment)}
    return {"status": "completed", "payment": payment, "tracking": tracking}


async def main() -> None:
    async with app:
        orders = [Order("a", 125, "Kiel"), Order("b", 5000, "Kiel"), Order("c", 80, "")]
        runs = [await app.start(order_workflow, order) for order in orders]
        for result in await asyncio.gather(*(run.result() for run in runs)):
            print(result)


if __name__ == "__main__":
    asyncio.run(main())
