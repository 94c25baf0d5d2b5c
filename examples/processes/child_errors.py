"""The error of a child arrives with its type, kind, details and causes: raised by ``ctx.run``, or in ``Exit.error``.

Run it: python examples/processes/child_errors.py
"""

import asyncio

from holdfast import ChildError, Context, Exit, Holdfast, WorkflowError

app = Holdfast("sqlite://")


class NoCustomerError(WorkflowError):
    pass


async def load(customer: str) -> str:
    raise NoCustomerError(f"no customer {customer}", kind="NotFound", retryable=False, details={"id": customer})


@app.workflow
async def find(ctx: Context, customer: str) -> str:
    try:
        return await ctx.do("load", load, customer, raises=(NoCustomerError,))
    except NoCustomerError as error:
        if customer == "c-2":
            raise LookupError("cannot continue") from error
        raise


@app.workflow
async def awaits(ctx: Context, customer: str) -> str:
    try:
        return await ctx.run(find, customer)
    except ChildError as error:
        return f"{error.type}: {error.message} ({error.kind}, {error.details}), because of {error.__cause__}"


@app.workflow
async def watches(ctx: Context) -> str:
    child = await ctx.spawn(find, "c-3")
    match await ctx.events.receive():
        case Exit(pid, error=ChildError() as error) if pid == child.pid:
            return f"exit: {error.kind}: {error.message}"
    return "no error"


async def main() -> None:
    async with app:
        print(await (await app.start(awaits, "c-1")).result())
        print(await (await app.start(awaits, "c-2")).result())
        print(await (await app.start(watches)).result())


if __name__ == "__main__":
    asyncio.run(main())
