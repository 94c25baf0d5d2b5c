"""Workflows, which are found by autodiscovery."""

from asgiref.sync import sync_to_async
from django.db import connections

from ext.django_project.shop.models import Order
from holdfast import Context, Retry
from holdfast.ext.django import app


@app.step(retry=Retry(limit=0))
def pay(key: int, database: str) -> int:
    try:
        order = Order.objects.using(database).get(pk=key)
        order.paid = True
        order.save()
        return order.total
    finally:
        connections.close_all()  # of the thread of this step


@app.workflow
async def fulfil(ctx: Context, order: dict[str, int | str]) -> int:
    total = await pay(int(order["key"]), str(order["database"]))
    await ctx.wait_for_event("shipped", type="shipped")
    return total


@app.workflow
async def told(ctx: Context, text: str) -> str:
    event = await ctx.wait_for_event("go", type="go")
    return f"{text} {event.payload}"


@app.workflow
async def failing(ctx: Context) -> None:
    await ctx.do("fail", sync_to_async(_fail), retry=Retry(limit=0))


def _fail() -> None:
    raise ValueError("no stock")
