"""A nightly report: a schedule with a time zone, the tick and the last result in the run, and a backfill.

The harness runs three nights in virtual time, so that the example ends at once.

Run it: python examples/nightly_report.py
"""

import asyncio
from datetime import timedelta

from holdfast import Context, Holdfast
from holdfast.testing import Harness

app = Holdfast("sqlite://")  # a real program names a file: Holdfast("sqlite:///reports.db")


@app.step
async def count_orders(day: str) -> int:
    return len(day)


@app.workflow
async def report(ctx: Context) -> dict[str, object]:
    assert ctx.info.scheduled_for is not None
    day = f"{ctx.info.scheduled_for - timedelta(days=1):%Y-%m-%d}"  # the tick, however late the run begins
    before: int = ctx.info.last_result["total"] if ctx.info.last_result else 0
    return {"day": day, "total": before + await count_orders(day)}


# Stored in the database when the app is opened; each tick starts exactly one run, under any number of workers.
app.schedule("nightly", report, cron="0 3 * * *", timezone="Europe/Berlin", overlap="skip", catch_up="1 hour")


async def main() -> None:
    async with Harness(app) as h:
        await h.advance("3 days")
        for run in reversed((await h.app.schedules.get("nightly")).last_runs):
            result = await (await h.app.get(report, run.id)).result()
            print(f"{run.id} {run.outcome}: {result['day']}, {result['total']} in all")

        ticks = await h.app.schedules.backfill("nightly", h.now() - timedelta(days=5), h.now() - timedelta(days=3))
        await h.run_until_idle()
        await h.advance("1 minute")
        print(f"backfilled {ticks}, next {(await h.app.schedules.preview('nightly', 1))[0]:%Y-%m-%d %H:%M} UTC")


asyncio.run(main())
