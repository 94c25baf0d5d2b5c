"""An order that waits for a person: steps, a durable sleep, and an event with a deadline.

Run it: python examples/order_with_approval.py
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast import Context, Holdfast, Retry, WaitForEventTimeoutError

# A real program names a file that stays: Holdfast("sqlite:///shop.db").
folder = tempfile.TemporaryDirectory()
app = Holdfast(f"sqlite:///{Path(folder.name) / 'shop.db'}")


@dataclass
class Order:
    id: str
    total: int


@dataclass
class Approval:
    by: str
    ok: bool


# Every side effect is a step. Its result is recorded; a failed attempt is retried, and the delay before the retry
# survives a restart of the program.
@app.step(retry=Retry(limit=3, delay="200 ms"), timeout="10 seconds")
async def charge(order: Order) -> str:
    return f"payment-{order.id}"


@app.step
def write_invoice(order: Order, payment: str) -> str:  # a plain function runs in a thread
    return f"invoice for {payment}: {order.total} EUR"


@app.step
async def refund(payment: str) -> str:
    return f"{payment} refunded"


# The workflow is ordinary code. It may be interrupted at any point, for a second or for a month.
@app.workflow
async def fulfil(ctx: Context, order: Order) -> str:
    payment = await charge(order)
    await ctx.sleep("cool off", "100 ms")  # "3 days" would work the same
    try:
        approval = await ctx.wait_for_event("approval", type="approval", timeout="1 second", payload=Approval)
    except WaitForEventTimeoutError:
        return await refund(payment)
    ctx.log.info("decided", data={"by": approval.payload.by, "ok": approval.payload.ok})
    if not approval.payload.ok:
        return await refund(payment)
    return await write_invoice(order, payment)


async def main() -> None:
    async with app:  # opens the database and runs a worker in this process
        approved = await app.start(fulfil, Order("a", 125), id="order-a")
        await approved.send_event("approval", Approval("ann", ok=True))  # kept until the workflow asks for it
        print("order-a:", await approved.result())

        # A start with the same id returns the same run: nothing is charged twice.
        again = await app.start(fulfil, Order("a", 125), id="order-a")
        print("order-a again:", await again.result())

        forgotten = await app.start(fulfil, Order("b", 80), id="order-b")
        await asyncio.sleep(0.5)
        print("order-b is", (await forgotten.describe()).why.split(" until ")[0])
        print("order-b:", await forgotten.result())

        for step in (await approved.history()).steps:
            print(f"  {step.step_key:<14} {step.type:<12} {step.status}")


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
