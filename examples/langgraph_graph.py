"""A graph of LangGraph as a workflow: its nodes are steps, and an interrupt waits for an event.

The graph drafts a letter and asks a person. The program closes the app while the graph waits (a deploy) and opens it
again: the draft, which stands for a paid call, is not written again. No model and no key is needed.
Run it: python examples/langgraph_graph.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from holdfast import Context, Holdfast
from holdfast.ext.langgraph import DurableGraph, StepOptions

folder = tempfile.TemporaryDirectory()
app = Holdfast(f"sqlite:///{Path(folder.name) / 'graphs.db'}")
calls: list[str] = []


class Letter(TypedDict, total=False):
    to: str
    text: str
    remark: str


async def draft(state: Letter) -> dict[str, Any]:
    calls.append("draft")
    return {"text": f"Dear {state['to']}"}


async def review(state: Letter) -> dict[str, Any]:
    return {"remark": interrupt({"please read": state["text"]})}


async def send(state: Letter) -> dict[str, Any]:
    calls.append("send")
    return {"text": f"{state['text']}, {state['remark']}"}


builder = StateGraph(Letter)
builder.add_node("draft", draft)
builder.add_node("review", review)
builder.add_node("send", send)
builder.add_edge(START, "draft")
builder.add_edge("draft", "review")
builder.add_edge("review", "send")
builder.add_edge("send", END)
graph = DurableGraph(builder.compile(), step=StepOptions(timeout="2 minutes"))


@app.workflow
async def write_letter(_: Context, to: str) -> str:
    letter = await graph.ainvoke({"to": to})
    return str(letter["text"])


async def main() -> None:
    async with app:
        run = await app.start(write_letter, "Ann", id="letter-1")
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.01)
        print((await run.describe()).why.partition(" in ")[0])

    async with app:
        run = await app.get(write_letter, "letter-1")
        await run.send_event("resume", {"value": "see you on Monday"})
        print(await run.result())
        print(f"calls: {calls}")


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
