"""A client of the MCP server finds a run that failed, explains it and repairs it, as a model does.

The client calls the server in the same process. ``holdfast mcp shop:app --write`` serves the same tools to a model.
Run it: python examples/mcp_repair.py
"""

import asyncio
from typing import Any

from mcp import Client

from holdfast import Context, Holdfast, Retry, RunFailedError
from holdfast.mcp import mcp_server

app = Holdfast("sqlite://")
gateway = {"up": False}


@app.step(retry=Retry(limit=0))
async def charge(amount: int) -> str:
    if not gateway["up"]:
        raise ConnectionError("the gateway is down")
    return f"payment of {amount}"


@app.workflow(mcp=True)
async def pay(_: Context, amount: int) -> str:
    """Pay an amount."""
    return await charge(amount)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    return (await client.call_tool(tool, arguments)).structured_content


async def main() -> None:
    async with app, Client(mcp_server(app, write=True, actor="assistant")) as client:
        for amount in (3, 5):
            try:
                await (await app.start(pay, amount, id=f"payment-{amount}")).result()
            except RunFailedError:
                gateway["up"] = True  # the operator repairs the gateway

        [failed] = (await call(client, "list_runs", status="errored"))["runs"]
        explained = await call(client, "explain_run", workflow="pay", id=failed["id"])
        print(f"{failed['id']}: {explained['error']['message']}")
        await call(client, "retry_run", workflow="pay", id=failed["id"], reason="the gateway is up again")
        print(await (await app.get(pay, failed["id"])).result())
        print((await call(client, "pay", params=7))["output"])
        for record in (await app.audit()).items:
            print(record.actor, record.action, record.target.partition("/")[0], record.reason)


if __name__ == "__main__":
    asyncio.run(main())
