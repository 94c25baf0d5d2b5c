"""Many steps at once with plain asyncio: gather, a semaphore, the fastest of several.

Workflow code runs on an event loop of its own on which asyncio is durable: results are delivered in the same order
on every replay. Run it: python examples/parallel_fetch.py
"""

import asyncio

from holdfast import Context, Holdfast, Retry

app = Holdfast("sqlite://")

PAGES = {f"page-{n}": n * 10 for n in range(1, 9)}
fetched: list[str] = []


@app.step(retry=Retry(limit=3, delay="20 ms"))
async def fetch(page: str) -> int:
    """A stand-in for an HTTP request. The first request for page-3 fails."""
    fetched.append(page)
    await asyncio.sleep(PAGES[page] / 1000)
    if page == "page-3" and fetched.count(page) == 1:
        raise TimeoutError("no answer")
    return PAGES[page]


@app.workflow
async def crawl(ctx: Context, pages: list[str]) -> int:
    slots = asyncio.Semaphore(3)  # at most three at a time: ordinary asyncio, durable in a workflow

    async def fetch_page(page: str) -> int:
        async with slots:
            # One name per item: the result is recorded under the name.
            return await ctx.do(f"fetch {page}", fetch, page)

    return sum(await asyncio.gather(*(fetch_page(page) for page in pages)))


@app.workflow
async def fastest(ctx: Context) -> str:
    """Request a page from two mirrors, return the first response, cancel the other. Every replay returns the same."""

    async def ask(mirror: str, page: str) -> str:
        await ctx.do(mirror, fetch, page)
        return mirror

    tasks = {asyncio.create_task(ask("near", "page-1")), asyncio.create_task(ask("far", "page-8"))}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return done.pop().result()


async def main() -> None:
    async with app:
        run = await app.start(crawl, list(PAGES))
        print("sum:", await run.result())
        attempts = {s.step_key: s.attempts for s in (await run.history()).steps}
        print("steps:", len(attempts), "- page-3 took", attempts["fetch page-3"], "attempts")
        print("fastest:", await (await app.start(fastest)).result())


if __name__ == "__main__":
    asyncio.run(main())
