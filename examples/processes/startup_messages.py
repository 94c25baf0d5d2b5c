"""Messages of a start: stored with the run or not at all, before any other; an existing run gets them too.

Run it: python examples/processes/startup_messages.py
"""

import asyncio

from holdfast import Context, Holdfast, select

app = Holdfast("sqlite://")


@app.workflow
async def counter(ctx: Context, initial: int) -> int:
    value = initial
    increments, finish = ctx.listen("increment"), ctx.listen("finish")
    while (chosen := await select(increments, finish)).channel is not finish:
        value += chosen.value["amount"]
    return value


async def main() -> None:
    async with app:
        amounts = [("increment", {"amount": amount}) for amount in (2, 1, 4)]
        first = await app.start(counter, 0, id="my-counter", messages=amounts)

        # The second start finds the run: its input is ignored, its messages are delivered.
        second = await app.start(counter, 999, id="my-counter", messages=[("increment", {"amount": 3})])
        print("the same run:", first.pid == second.pid)

        await second.send_event("finish")
        print("counted to", await first.result())
        for event in (await first.history()).events:
            print(event.type, event.payload, "by", event.consumed_by_step_key)


if __name__ == "__main__":
    asyncio.run(main())
