"""All authoring models in one app: a chain whose step starts a graph, one node of which is a workflow with steps.

    python examples/four_ways.py

The chain has the stages of the business process, the graph has the work that can be done in parallel, and the workflow
is the part that needs code with a wait in the middle. All of them share one store, one worker and one CLI.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from holdfast import ChainTask, Completed, Context, Holdfast, Outbound, OutboundEvent, Waiting

app = Holdfast("sqlite:///" + str(Path(tempfile.mkdtemp()) / "four_ways.db"))


# --- code with steps


@app.step
async def ask_model(text: str) -> str:
    return f"a summary of {len(text)} characters"


@app.workflow
async def summarize(ctx: Context, text: str) -> str:
    draft = await ask_model(text)
    approval = await ctx.wait_for_event("approval", type="approval", timeout="2 days")
    return f"{draft}, approved by {approval.payload}"


# --- a graph, one node of which is that workflow

press = app.graph("press")


@press.node
async def fetch(params: dict[str, Any]) -> list[str]:
    return [f"{name} has the floor. " * 3 for name in params["speakers"]]


@press.node(map=fetch)
def count_words(fetch: str) -> int:
    return len(fetch.split())


press.node(run=summarize, after=[fetch], input=lambda fetch: " ".join(fetch).strip())


@press.node(after=[count_words, "summarize"])
async def filed(params: dict[str, Any], count_words: list[int], summarize: str) -> None:
    chain = await app.get(release, params["chain"])
    text = f"{sum(count_words)} words; {summarize}"
    await chain.send_event("assembled", text, id="assembled")  # the id makes a repeated send harmless


# --- a chain, one step of which waits for that graph

release = app.chain("release", version=1)


@release.step("PREPARE")
async def prepare(task: ChainTask) -> Any:
    return {"speakers": [name.title() for name in task.params["speakers"]], "chain": task.instance_id}


@release.step("ASSEMBLE")
async def start_graph(task: ChainTask) -> Any:
    if task.kind == "RUN":
        run = await app.start(press, task.outputs["PREPARE"], id=f"{task.instance_id}-press")
        return Waiting("assembled", timeout="7 days", outbound=[Outbound("press.started", {"graph": run.id})])
    return Completed(task.event.payload if task.event is not None else "nobody was in time")


@release.step("PUBLISH")
async def publish(task: ChainTask) -> str:
    return f"published: {task.outputs['ASSEMBLE']}"


@app.outbox
async def tell_the_world(event: OutboundEvent) -> None:
    print(f"outbox: {event.type} {event.payload}")


async def main() -> None:
    async with app:
        chain = await app.start(release, {"speakers": ["ann", "bob"]}, id="monday")
        graph = await wait_for_graph()
        [child] = await wait_for_child(graph)
        await (await app.get(summarize, child)).send_event("approval", "the editor")
        print(await chain.result(timeout=30))
        await graph.result(timeout=30)
        for run in (chain, graph, await app.get(summarize, child)):
            described = await run.describe()
            steps = [f"{step.name} {step.state or step.status}" for step in (await run.history()).steps]
            print(f"{described.kind:8} {described.status:8} {', '.join(steps)}")


async def wait_for_graph() -> Any:
    while not (found := (await app.list(press)).items):
        await asyncio.sleep(0.01)
    return await app.get(press, found[0].id)


async def wait_for_child(graph: Any) -> list[str]:
    while not (children := (await graph.describe()).children):
        await asyncio.sleep(0.01)
    return [child.pid.partition("/")[2] for child in children]


if __name__ == "__main__":
    asyncio.run(main())
