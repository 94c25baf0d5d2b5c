"""An agent of pydantic-ai in a workflow: it streams its answer, and a payment waits for approval.

A function stands for a paid model, so no key is needed. The program closes the app while the payment waits (a deploy)
and opens it again: no model request and no tool call is repeated, and the stream of the run has every word once.
Run it: python examples/pydantic_ai_approval.py
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import Context, Holdfast
from holdfast.ext.pydantic_ai import HoldfastDurability, approvals

folder = tempfile.TemporaryDirectory()
app = Holdfast(f"sqlite:///{Path(folder.name) / 'agents.db'}")
calls: list[str] = []


async def model(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
    """Ask for two prices at once, then for the payment, then answer."""
    calls.append("model")
    answers = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not answers:
        parts = ("bolt", "nut")
        yield {n: DeltaToolCall("price", json.dumps({"part": part}), tool_call_id=part) for n, part in enumerate(parts)}
    elif len(answers) == 2:
        total = sum(int(str(answer.content)) for answer in answers)
        yield {0: DeltaToolCall("pay", json.dumps({"amount": total}), tool_call_id="payment")}
    else:
        for word in ("I ", "paid ", str(answers[-1].content)):
            yield word


buyer: Agent[None, Any] = Agent(
    FunctionModel(stream_function=model),
    name="buyer",
    output_type=[str, DeferredToolRequests],
    capabilities=[HoldfastDurability(app, stream="model")],
)


@buyer.tool_plain
async def price(part: str) -> int:
    calls.append(f"price of a {part}")
    return len(part)


@buyer.tool_plain(requires_approval=True)
async def pay(amount: int) -> str:
    calls.append("pay")
    return f"{amount} coins"


@app.workflow
async def buy(_: Context, order: str) -> str:
    result = await buyer.run(order)
    while isinstance(result.output, DeferredToolRequests):
        decided = await approvals(result.output)
        result = await buyer.run(message_history=result.all_messages(), deferred_tool_results=decided)
    return str(result.output)


async def main() -> None:
    async with app:
        run = await app.start(buy, "a bolt and a nut", id="order-1")
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.01)
        print((await run.describe()).why.partition(" in ")[0])

    async with app:
        run = await app.get(buy, "order-1")
        await run.send_event("approval", {"tool_call_id": "payment", "approved": True})
        print(await run.result())
        print(sorted(calls))
        events = [item.value async for item in run.stream("model")]
        begin = [event["part"].get("content", "") for event in events if event["event_kind"] == "part_start"]
        words = [event["delta"]["content_delta"] for event in events if event["event_kind"] == "part_delta"]
        print(f"streamed: {''.join(begin + words)}")


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
