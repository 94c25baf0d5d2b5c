"""An agent: a loop of paid API calls that is stopped in the middle and continues without repeating paid calls.

Each call of the model and of a tool is a step, named by its turn. The program closes the app half-way (a deploy)
and opens it again: the results of recorded calls come from the database.
Run it: python examples/agent_loop.py
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast import Context, Holdfast, Retry

folder = tempfile.TemporaryDirectory()
app = Holdfast(f"sqlite:///{Path(folder.name) / 'agents.db'}")
calls: list[str] = []
third_turn = asyncio.Event()


@dataclass
class Reply:
    """The model's reply: a tool to call with an argument, or (tool None) the final answer."""

    tool: str | None
    argument: str


@app.step(retry=Retry(limit=10, delay="1 second", max_delay="1 minute", jitter=0.2), timeout="2 minutes")
async def ask_model(conversation: list[str]) -> Reply:
    """A stand-in for a slow, paid call."""
    calls.append("model")
    known = sum(line.startswith("tool") for line in conversation)
    if known == 2:
        third_turn.set()
    await asyncio.sleep(0.05)
    return Reply("look up", f"fact {known + 1}") if known < 4 else Reply(None, f"answer from {known} facts")


def look_up(subject: str) -> str:
    calls.append("tool")
    return f"{subject} is known"


TOOLS = {"look up": look_up}


@app.workflow
async def agent(ctx: Context, question: str) -> str:
    conversation = [f"user: {question}"]
    for turn in range(1, 21):
        reply = await ctx.do(f"model {turn}", ask_model, conversation)
        if reply.tool is None:
            return reply.argument
        found = await ctx.do(f"tool {turn}", TOOLS[reply.tool], reply.argument)
        conversation.append(f"tool: {found}")
        ctx.log.info("turn", data={"turn": turn, "found": found})
    return "gave up after 20 turns"


async def main() -> None:
    async with app:
        await app.start(agent, "what holds fast?", id="question-1")
        await third_turn.wait()
    # Leaving the block waits for the running step, records its result, and releases the run.
    print(f"stopped after {calls.count('model')} model calls")

    async with app:  # in another process, or on another day: the run continues from its recorded results
        run = await app.get(agent, "question-1")
        print(await run.result())
        print(f"model calls in all: {calls.count('model')}, tool calls: {calls.count('tool')}")
        again = [line for line in await run.logs() if line.is_replay]
        print(f"log lines written again by the replay: {len(again)}")


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
