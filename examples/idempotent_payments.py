"""Retries, and why steps must be safe to repeat: a payment with an idempotency key.

A step runs at least once. If the bank's response is lost, the step runs again; by the key the bank recognises the same
payment. Run it: python examples/idempotent_payments.py
"""

import asyncio

from holdfast import Context, Holdfast, NonRetryableError, Retry, RunFailedError

app = Holdfast("sqlite://")  # in memory, for the example


class CardDeclinedError(NonRetryableError):
    """A declined card; a retry would not help."""


class Bank:
    """A stand-in for a remote service whose first two responses are lost."""

    def __init__(self) -> None:
        self.payments: dict[str, int] = {}
        self.calls = 0

    async def pay(self, key: str, amount: int) -> str:
        self.calls += 1
        if amount > 1000:
            raise CardDeclinedError(f"{amount} is over the limit")
        self.payments.setdefault(key, amount)  # the same key again changes nothing
        if self.calls <= 2:
            raise ConnectionError("paid, but the answer was lost")
        return f"receipt for {key}"


bank = Bank()


# Attempts: 1 + limit. The delays are 50, 100, 200, 400 ms; they are stored, so they survive a restart.
# `raises`: the workflow receives CardDeclinedError itself, not a StepError.
@app.step(retry=Retry(limit=4, delay="50 ms", backoff="exponential"), raises=(CardDeclinedError,))
async def charge(key: str, amount: int) -> str:
    return await bank.pay(key, amount)


@app.workflow
async def pay(ctx: Context, amount: int) -> str:
    # The same on every replay and every attempt, different for every run.
    key = f"{ctx.info.instance_id}-{ctx.info.run_number}"
    try:
        return await charge(key, amount)
    except CardDeclinedError as declined:
        return f"declined: {declined}"


@app.workflow
async def careless(_ctx: Context, amount: int) -> str:
    return await charge("careless", amount)  # its error is not caught: the run fails


async def main() -> None:
    async with app:
        run = await app.start(pay, 125, id="invoice-1")
        print(await run.result())
        [step] = (await run.history()).steps
        print(f"attempts: {step.attempts}, payments at the bank: {len(bank.payments)}")

        print(await (await app.start(pay, 5000, id="invoice-2")).result())

        try:
            await (await app.start(careless, 5000)).result()
        except RunFailedError as failed:
            print(f"failed: {failed.error.message}")


if __name__ == "__main__":
    asyncio.run(main())
