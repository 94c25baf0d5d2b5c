"""An endless run keeps its history short: ``continue_as_new`` starts a successor with the state and open messages.

Run it: python examples/processes/info_and_continue.py
"""

import asyncio
from dataclasses import dataclass, field

from holdfast import Context, Holdfast

app = Holdfast("sqlite://")
FEW = 10  # thousands, in real life


@dataclass
class Account:
    balance: int = 0
    seen: list[str] = field(default_factory=list)


@app.workflow
async def account(ctx: Context, state: Account) -> Account:
    info = ctx.info
    state.seen.append(f"{info.pid}, run {info.run_number}, attempt {info.attempt}: balance {state.balance}")
    async for amount in ctx.listen("deposit"):
        if amount == 0:
            break
        state.balance += amount
        if ctx.info.history_length >= FEW:
            raise ctx.continue_as_new(state)  # the successor gets the messages that were not received
    return state


async def main() -> None:
    async with app:
        run = await app.start(account, Account(), id="ann", messages=[("deposit", 1)] * 25)
        await run.send_event("deposit", 0)
        state = await run.result()
        print(*state.seen, f"in the end: {state.balance}", sep="\n")
        print("messages by run:", [len((await run.history(run_number=n)).events) for n in range(3)])


if __name__ == "__main__":
    asyncio.run(main())
