"""All messages in one channel: ``ctx.inbox`` returns every message whose topic has no ``listen`` channel.

Run it: python examples/processes/inbox.py
"""

import asyncio

from holdfast import Context, Holdfast

app = Holdfast("sqlite://")


@app.workflow
async def order(ctx: Context, name: str) -> dict[str, str]:
    async for message in ctx.inbox:
        match message.topic:
            case "approve":
                return {"order": name, "status": "approved"}
            case "cancel":
                return {"order": name, "status": "cancelled", "reason": message.payload["reason"]}
            case other:
                ctx.log.warning(f"no use for {other}")
    raise AssertionError("an inbox is never closed by the engine")


async def main() -> None:
    async with app:
        first = await app.start(order, "o-1")
        await first.send_event("comment", "please hurry")  # an event from outside is a message too
        await first.send_event("approve")
        print(await first.result())
        print([line.message for line in await first.logs()])

        second = await app.start(order, "o-2")
        await second.send_event("cancel", {"reason": "too late"})
        print(await second.result())


if __name__ == "__main__":
    asyncio.run(main())
