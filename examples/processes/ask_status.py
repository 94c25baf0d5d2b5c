"""Request and reply: ``ask`` sends a message and waits for the reply, with a timeout, from outside and between runs.

Run it: python examples/processes/ask_status.py
"""

import asyncio
from typing import Any

from holdfast import Context, Holdfast, Rejected

app = Holdfast("sqlite://")


@app.workflow
async def importing(ctx: Context) -> str:
    async def reply_to_asks() -> None:
        async for question in ctx.listen("get_status", messages=True):
            if question.payload == "secret":
                await question.reject("not for you")
            else:
                await question.reply({"status": "processing", "progress": 75})

    replying = asyncio.create_task(reply_to_asks())
    await ctx.wait_for_event("stop", type="stop")
    replying.cancel()
    return "stopped"


@app.workflow
async def dashboard(ctx: Context, pid: str) -> Any:
    return await ctx.ask(pid, "get_status", timeout="5 seconds")


@app.workflow
async def silent(ctx: Context) -> None:
    await ctx.wait_for_event("stop", type="stop")


async def main() -> None:
    async with app:
        run = await app.start(importing)
        print("from outside:", await run.ask("get_status", timeout="5 seconds"))
        print("from a run:", await (await app.start(dashboard, run.pid)).result())
        try:
            await run.ask("get_status", "secret", timeout="5 seconds")
        except Rejected as error:
            print("rejected:", error.reason)

        quiet = await app.start(silent)
        try:
            await quiet.ask("get_status", timeout="100 ms")
        except TimeoutError:
            print("no answer in time")
        for waiting in (run, quiet):
            await waiting.send_event("stop")
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
