"""A report that is larger than the memory should be: written and read in parts, outside of the row of the run.

The parts are files here. With HOLDFAST_EXAMPLE_BLOBS=s3://bucket/prefix they are objects of an S3-compatible service,
whose endpoint and credentials are in AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
Run it: python examples/large_report.py
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator

from holdfast import Context, Holdfast
from holdfast.payloads import Blob


def lines(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield f"{number},{number * number}\n".encode()


async def with_semicolons(report: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in report:
        yield part.replace(b",", b";")


def make_app(blobs: str) -> Holdfast:
    app = Holdfast("sqlite://", blobs=blobs)

    @app.step
    async def write(count: int) -> Blob:
        return await app.blobs.write(lines(count))

    @app.step
    async def translate(report: Blob) -> Blob:
        return await app.blobs.write(with_semicolons(app.blobs.read(report)))

    @app.workflow
    async def report(_ctx: Context, count: int) -> Blob:
        return await translate(await write(count))

    return app


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = make_app(os.environ.get("HOLDFAST_EXAMPLE_BLOBS", f"file://{folder}"))
        async with app:
            run = await app.start("report", 100_000)
            made = await run.result()
            sizes = [len(part) async for part in app.blobs.read(made)]
            history = await run.history()
    print(f"{made.size} bytes, the largest part in memory: {max(sizes)}")
    print(f"the recorded result: {sorted(history.steps[-1].result['$blob'])}")


if __name__ == "__main__":
    asyncio.run(main())
