"""Two runs that send messages to each other by pid. A send to a run that does not exist raises an error.

Run it: python examples/processes/ping_pong.py
"""

import asyncio
from typing import Any

from holdfast import Context, Holdfast, InstanceNotFoundError

app = Holdfast("sqlite://")


@app.workflow
async def pong(ctx: Context, rounds: int) -> int:
    pings = ctx.listen("ping", messages=True)
    for _ in range(rounds):
        ping = await pings.receive()
        assert ping.sender is not None
        await ctx.send(ping.sender, "pong", ping.payload * 2)
    return rounds


@app.workflow
async def ping(ctx: Context, target: str) -> dict[str, Any]:
    pongs = ctx.listen("pong")
    received = []
    try:
        for number in range(3):
            await ctx.send(target, "ping", number)  # committed with this run's progress when it returns
            received.append(await pongs.receive())
    except InstanceNotFoundError as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, "received": received}


async def main() -> None:
    async with app:
        target = await app.start(pong, 3, id="table-1")
        print(await (await app.start(ping, target.pid)).result())
        print(await target.result(), "pings answered")
        print(await (await app.start(ping, "pong/table-2")).result())


if __name__ == "__main__":
    asyncio.run(main())
