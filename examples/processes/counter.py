"""A counter that handles several topics at once and replies to each sender: ack, then ok; or nak.

The customer is a run too, and receives the replies in its inbox. Run it: python examples/processes/counter.py
"""

import asyncio

from holdfast import Context, Holdfast

app = Holdfast("sqlite://")


@app.workflow
async def counter(ctx: Context, initial: int) -> int:
    value = initial

    async def handle(topic: str, sign: int) -> None:
        nonlocal value
        async for message in ctx.listen(topic, messages=True):
            sender = message.sender
            assert sender is not None  # a message from outside has no sender, so it cannot be replied to by ctx.send
            match message.payload:
                case {"amount": int(amount)} if value + sign * amount >= 0:
                    await ctx.send(sender, "ack")
                    value += sign * amount
                    await ctx.send(sender, "ok", value)
                case {"amount": int()}:
                    await ctx.send(sender, "nak", "would be negative")
                case _:
                    await ctx.send(sender, "nak", "amount must be a number")

    async with asyncio.TaskGroup() as handlers:
        tasks = [handlers.create_task(handle("increment", +1)), handlers.create_task(handle("decrement", -1))]
        finish = await ctx.listen("finish", messages=True).receive()
        for task in tasks:
            task.cancel()
    await ctx.send(finish.sender or "", "ok", "finishing")
    return value


@app.workflow
async def customer(ctx: Context, pid: str) -> list[str]:
    replies: list[str] = []
    requests = [("increment", {"amount": 5}), ("decrement", {"amount": 9}), ("increment", "lots"), ("finish", None)]
    for topic, payload in requests:
        await ctx.send(pid, topic, payload)
        async for message in ctx.inbox:
            replies.append(f"{topic}: {message.topic} {message.payload or ''}".strip())
            if message.topic != "ack":
                break
    return replies


async def main() -> None:
    async with app:
        counting = await app.start(counter, 1)
        buying = await app.start(customer, counting.pid)
        print(*await buying.result(), sep="\n")
        print("final value:", await counting.result())


if __name__ == "__main__":
    asyncio.run(main())
