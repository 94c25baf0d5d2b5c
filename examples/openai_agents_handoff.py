"""Two agents of OpenAI Agents in a workflow: a tool call waits for approval, then one agent hands off to the other.

A scripted model of the framework stands for a paid one, so no key is needed. The program closes the app while the tool
call waits (a deploy) and opens it again: no model request is repeated.
Run it: python examples/openai_agents_handoff.py
"""

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from holdfast import Context, Holdfast
from holdfast.ext.openai_agents import RunSession, approvals, durable

set_tracing_disabled(True)
folder = tempfile.TemporaryDirectory()
app = Holdfast(f"sqlite:///{Path(folder.name) / 'agents.db'}")


@function_tool(needs_approval=True)
async def refund(amount: int) -> str:
    return f"{amount} coins"


clerk_model = ScriptedModel(
    [
        ModelStep(output=[function_call("refund", {"amount": 3}, call_id="call-1")]),
        ModelStep(output=[function_call("transfer_to_writer", {}, call_id="call-2")]),
    ]
)
writer_model = ScriptedModel([ModelStep(output=[assistant_message("Dear Ann, we have refunded 3 coins.")])])
writer = Agent(name="writer", model=writer_model)
clerk = durable(Agent(name="clerk", model=clerk_model, tools=[refund], handoffs=[writer]))


@app.workflow
async def complaint(_: Context, text: str) -> str:
    session = RunSession()
    result = await Runner.run(clerk, text, session=session)
    while result.interruptions:
        result = await Runner.run(clerk, await approvals(result), session=session)
    return str(result.final_output)


async def main() -> None:
    async with app:
        run = await app.start(complaint, "it broke", id="complaint-1")
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.01)
        print((await run.describe()).why.partition(" in ")[0])

    async with app:
        run = await app.get(complaint, "complaint-1")
        await run.send_event("approval", {"call_id": "call-1", "approved": True})
        print(await run.result())
        print(f"model requests: {len(clerk_model.calls) + len(writer_model.calls)}")
        print([step.step_key for step in (await run.history()).steps])


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
