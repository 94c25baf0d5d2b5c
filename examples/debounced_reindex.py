"""Debounced re-indexing: many changes of a shop start one run, and the last state is indexed.

The harness runs the example in virtual time, so that it ends at once.

Run it: python examples/debounced_reindex.py
"""

import asyncio

from holdfast import Context, Debounce, Holdfast
from holdfast.testing import Harness

app = Holdfast("sqlite://")  # a real program names a file or a PostgreSQL database
indexed: list[dict[str, int]] = []


@app.step
async def write_index(state: dict[str, int]) -> int:
    indexed.append(state)
    return state["products"]


@app.workflow
async def reindex(_ctx: Context, state: dict[str, int]) -> int:
    return await write_index(state)


async def main() -> None:
    async with Harness(app) as h:
        policy = Debounce("5 seconds", max_wait="1 minute", key="shop-1")
        for products in range(1, 11):  # ten changes, one second apart
            run = await h.start(reindex, {"products": products}, debounce=policy)
            await h.advance("1 second")
        print((await run.describe()).why)
        await h.advance("5 seconds")
        print(f"indexed {await run.result()} products in {len(indexed)} run")


if __name__ == "__main__":
    asyncio.run(main())
