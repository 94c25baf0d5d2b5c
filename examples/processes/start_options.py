"""A start with most of its options, in virtual time. docs/processes.md explains each option.

Run it: python examples/processes/start_options.py
"""

import asyncio

from holdfast import Context, Holdfast, InvalidOptionError, Retry
from holdfast.testing import Harness

app = Holdfast("sqlite://")


@app.workflow
async def order(ctx: Context, item: str) -> str:
    await ctx.sleep("delivery", "40 minutes")
    if ctx.info.attempt < 3:
        raise ConnectionError("the lorry broke down")
    return f"{item} on attempt {ctx.info.attempt}"


async def main() -> None:
    async with Harness(app) as h:
        run = await h.start(
            order,
            "teapot",
            id="order-123",
            on_conflict="fail",
            execution_timeout="24h",
            run_timeout="1h",
            task_timeout="30s",
            retry=Retry(limit=2, delay="1s", backoff="exponential", max_delay="5 minutes"),
            search={"customer": "c-123"},
            memo={"source": "api"},
            start_delay="5m",
            priority=-1,
            summary="a teapot for c-123",
        )
        await h.run_until_idle()
        print((await run.describe()).why)
        await h.advance("50 minutes")
        print((await run.describe()).why.split(" until ")[0], "on attempt", (await run.describe()).attempt)
        await h.advance("2 hours")
        print((await run.status()).output)
        try:
            await h.start(order, "teapot", run_timeout="soon")
        except InvalidOptionError as error:
            print(str(error).partition(";")[0])


if __name__ == "__main__":
    asyncio.run(main())
