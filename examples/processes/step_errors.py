"""The error of a step has a kind, a retryable flag and details; retries are set for a step or for a call.

Run it: python examples/processes/step_errors.py
"""

import asyncio

from holdfast import Context, Holdfast, Retry, StepError, WorkflowError

app = Holdfast("sqlite://")
tried: list[str] = []


class OutOfStockError(WorkflowError):
    pass


class GatewayDownError(Exception):
    pass


@app.step
async def reserve(item: str) -> None:
    tried.append("reserve")
    raise OutOfStockError(f"no {item} left", kind="NotFound", retryable=False, details={"item": item})


@app.step(retry=Retry(limit=2, delay="10 ms"))
async def unreliable() -> None:
    tried.append("unreliable")
    raise GatewayDownError("no answer")


@app.workflow
async def shop(ctx: Context) -> list[str]:
    seen = []
    for call in (reserve("tea"), unreliable(), ctx.do("once", unreliable, retry=Retry(limit=0))):
        try:
            await call
        except StepError as error:
            seen.append(
                f"{error.step}: {error.type}: {error.message} "
                f"(kind {error.kind}, retryable {error.retryable}, details {error.details}, attempts {error.attempts})"
            )
    return seen


async def main() -> None:
    async with app:
        for line in await (await app.start(shop)).result():
            print(line)
        print({name: tried.count(name) for name in tried})


if __name__ == "__main__":
    asyncio.run(main())
