"""Context values: passed from the start to the workflow, to its steps (also in threads) and to its children.

Run it: python examples/processes/context_values.py
"""

import asyncio
from typing import Any

from holdfast import Context, Holdfast, context_values

app = Holdfast("sqlite://")


@app.step
async def charge() -> str:
    return f"charged for {context_values()['tenant']}"


@app.step
def write_audit() -> str:  # a plain function runs in a thread, and gets the values too
    return f"audited {context_values()['request_id']}"


@app.workflow
async def child(ctx: Context) -> dict[str, Any]:
    return dict(ctx.values)


@app.workflow
async def order(ctx: Context) -> dict[str, Any]:
    return {
        "user": ctx.values["user_id"],
        "steps": [await charge(), await write_audit()],
        "child": await ctx.run(child, context={"user_id": "robot"}),  # merged over the parent's values
    }


async def main() -> None:
    async with app:
        context = {"user_id": "user-1", "tenant": "tenant-1", "request_id": "req-abc"}
        result = await (await app.start(order, context=context)).result()
        for key, value in result.items():
            print(key, value)


if __name__ == "__main__":
    asyncio.run(main())
