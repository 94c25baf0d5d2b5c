"""A saga: if a later step fails or is cancelled, undo steps run for the completed ones, the last first.

Run it: python examples/processes/saga.py
"""

import asyncio
from dataclasses import dataclass

from holdfast import Context, Holdfast, NonRetryableError

app = Holdfast("sqlite://")


@dataclass
class Order:
    item: str
    card: str
    address: str


@app.step
async def reserve_inventory(item: str) -> str:
    return f"reservation of {item}"


@app.step
async def release_inventory(reservation: str) -> str:
    return f"{reservation} released"


@app.step
async def charge_payment(card: str) -> str:
    if card == "stolen":
        raise NonRetryableError("card declined")
    return f"payment by {card}"


@app.step
async def refund_payment(payment: str) -> str:
    return f"{payment} refunded"


@app.step
async def ship(address: str) -> str:
    if address == "the moon":
        raise NonRetryableError("too far away")
    return f"tracking to {address}"


@app.workflow
async def buy(ctx: Context, order: Order) -> str:
    try:
        async with ctx.saga() as saga:
            reservation = await reserve_inventory(order.item)
            saga.add(release_inventory, reservation)
            payment = await charge_payment(order.card)
            saga.add(refund_payment, payment)
            return await ship(order.address)
    except NonRetryableError as error:
        return f"failed: {error}"


async def main() -> None:
    async with app:
        orders = [Order("tea", "visa", "Kiel"), Order("tea", "stolen", "Kiel"), Order("tea", "visa", "the moon")]
        for order in orders:
            run = await app.start(buy, order)
            print(await run.result())
            print("  ", *(step.name for step in (await run.history()).steps))


if __name__ == "__main__":
    asyncio.run(main())
