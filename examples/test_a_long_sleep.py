"""A workflow that sleeps for months, and its test: time is virtual, so the test takes milliseconds.

In a project the two `test_` functions would be found by pytest (with pytest-asyncio).
Run it: python examples/test_a_long_sleep.py
"""

import asyncio

from holdfast import Context, Holdfast, WaitForEventTimeoutError
from holdfast.testing import Harness

app = Holdfast("sqlite:///subscriptions.db")  # the harness uses a database in memory instead
mails: list[str] = []


@app.step
async def send_mail(to: str, text: str) -> None:
    mails.append(f"{to}: {text}")


@app.workflow
async def subscription(ctx: Context, customer: str) -> str:
    await send_mail(customer, "welcome")
    for year in (1, 2):
        await ctx.sleep(f"until renewal {year}", "335 days")
        await send_mail(customer, f"year {year} ends in 30 days")
        try:
            await ctx.wait_for_event(f"renewal {year}", type="renewed", timeout="30 days")
        except WaitForEventTimeoutError:
            return f"ended after year {year}"
    return "renewed twice"


async def test_a_customer_who_does_not_renew_is_reminded_once() -> None:
    mails.clear()
    async with Harness(app, seed=1) as h:
        run = await h.start(subscription, "ann")
        await h.run_until_idle()
        assert mails == ["ann: welcome"]

        await h.advance("335 days")
        assert mails[-1] == "ann: year 1 ends in 30 days"

        await h.restart()  # drop everything in memory: the run is replayed from the database
        await h.advance("30 days")
        assert (await run.status()).output == "ended after year 1"
        assert len(mails) == 2  # the replay sent no mail again


async def test_losing_the_worker_anywhere_changes_nothing() -> None:
    async with Harness(app) as h:
        # Runs the workflow once for each of its commits, and loses the worker right after that commit.
        assert await h.crash_everywhere(subscription, "bob") == "ended after year 1"


async def main() -> None:
    await test_a_customer_who_does_not_renew_is_reminded_once()
    await test_losing_the_worker_anywhere_changes_nothing()
    print("two years of subscriptions, both tests passed")


if __name__ == "__main__":
    asyncio.run(main())
