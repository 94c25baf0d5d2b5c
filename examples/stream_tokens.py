"""A model's answer as a durable stream: the reader disconnects, reconnects and misses nothing, although a step fails.

Run it: python examples/stream_tokens.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from holdfast import Context, Holdfast, Retry, step_info

app = Holdfast("sqlite://")


async def model(question: str) -> AsyncIterator[str]:
    """Stands for the client of a language model."""
    for token in f"{question} Forty two .".split():
        await asyncio.sleep(0.01)
        yield token


@app.step(retry=Retry(limit=2, delay="10 ms", backoff="constant"))
async def answer(question: str) -> str:
    tokens = []
    async with step_info().stream("tokens") as out:
        async for token in model(question):
            tokens.append(token)
            await out.write(token)
            if step_info().attempt == 1 and len(tokens) == 3:
                raise ConnectionError("the model's server closed the connection")
    return " ".join(tokens)


@app.workflow
async def chat(ctx: Context, question: str) -> str:
    await ctx.stream("progress").write({"status": "thinking"})
    text = await answer(question)
    await ctx.stream("progress").write({"status": "done"})
    return text


async def main() -> None:
    async with app:
        run = await app.start(chat, "What is it?")

        last = 0
        async for item in run.stream("tokens", attempts="all"):  # live, with the items of the attempt that fails
            print(f"{item.offset} attempt {item.attempt}: {item.value}")
            last = item.offset
            if item.value == "is":
                break
        print("-- reconnected")
        async for item in run.stream("tokens", after=last, attempts="all"):
            print(f"{item.offset} attempt {item.attempt}: {item.value}")

        print("output:", " ".join([item.value async for item in run.stream("tokens")]))
        print("progress:", [item.value["status"] async for item in run.stream("progress")])


if __name__ == "__main__":
    asyncio.run(main())
