"""A bug that ordinary tests do not show, found by simulation, and fixed.

The first workflow works, and its tests pass. But a worker may crash after the payment and before its result is
recorded; then the step runs again, and the customer pays twice. `simulate` runs the workflow under such faults, here
with 50 seeds.
Run it: python examples/simulate_a_charge.py
"""

import asyncio

from holdfast import Context, Holdfast
from holdfast.testing import SimulationFailed, simulate

app = Holdfast("sqlite:///shop.db")  # simulations use their own databases, in memory


class Bank:
    """A fake of the bank's service that treats repeated requests as the real one does."""

    def __init__(self) -> None:
        self.payments: list[int] = []
        self._keys: set[str] = set()

    async def pay(self, amount: int, key: str | None = None) -> str:
        await asyncio.sleep(0.2)  # takes no real time: a simulation has virtual time
        if key is None or key not in self._keys:
            self.payments.append(amount)
        if key is not None:
            self._keys.add(key)
        return f"paid {amount}"


bank = Bank()


def fresh_bank() -> Bank:
    """A new bank for each simulated run, so that runs do not affect each other."""
    global bank  # noqa: PLW0603  (steps use it by this name)
    bank = Bank()
    return bank


@app.step
async def charge(amount: int) -> str:
    return await bank.pay(amount)


@app.workflow
async def order(_ctx: Context, amount: int) -> str:
    return await charge(amount)


@app.step
async def charge_once(key: str, amount: int) -> str:
    return await bank.pay(amount, key)


@app.workflow
async def repaired_order(ctx: Context, amount: int) -> str:
    # The same on every replay and every attempt, different for every run.
    return await charge_once(str(ctx.uuid4()), amount)


def payments(bank: Bank) -> list[int]:
    """The state that must be the same with faults as without."""
    return bank.payments


async def main() -> None:
    try:
        await simulate(app, order, 125, seeds=50, world=fresh_bank, view=payments)
    except SimulationFailed as failed:
        [finding] = failed.report.findings
        print(f"{finding.kind}: {finding.step}")
        print(finding.message)
        for line in finding.story:
            print(line.split("  ")[-1])

    report = await simulate(app, repaired_order, 125, seeds=50, world=fresh_bank, view=payments)
    print(f"repaired: {report.seeds} seeds, {len(report.findings)} findings")


if __name__ == "__main__":
    asyncio.run(main())
