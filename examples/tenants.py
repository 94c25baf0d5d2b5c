"""Tenants that share a limit fairly: a tenant with one run does not wait for the hundred runs of another one.

The harness runs the example in virtual time and in the same order every time.

Run it: python examples/tenants.py
"""

import asyncio

from holdfast import Context, Holdfast
from holdfast.testing import Harness

app = Holdfast("sqlite://")  # a real program names a file or a PostgreSQL database
machine = app.limit("machine", concurrency=1)
tenants = app.limit("tenants", key="tenant", fair=True)
served: list[str] = []


@app.step(limits=[machine, tenants])
async def render(tenant: str) -> None:
    served.append(tenant)


@app.workflow
async def book(_ctx: Context, tenant: str) -> None:
    for _page in range(2):
        await render(tenant)


async def main() -> None:
    async with Harness(app) as h:
        for _ in range(100):
            await h.start(book, "large")
        small = await h.start(book, "small")
        await h.run_until_idle()
        print((await small.status()).status)
    print(f"the small tenant was served at positions {[n for n, tenant in enumerate(served) if tenant == 'small']}")
    print(f"pages in all: {len(served)}")


if __name__ == "__main__":
    asyncio.run(main())
