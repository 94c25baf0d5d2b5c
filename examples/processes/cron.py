"""A schedule: each tick starts a new run of the same id. Tested in virtual time.

Run it: python examples/processes/cron.py
"""

import asyncio

from holdfast import Context, Holdfast
from holdfast.testing import Harness

app = Holdfast("sqlite://")
reports: list[str] = []


@app.step
async def write_report(text: str) -> None:
    reports.append(text)


@app.workflow
async def report(ctx: Context) -> None:
    await write_report(f"run {ctx.info.run_number} at {ctx.now():%a %H:%M}")


async def main() -> None:
    async with Harness(app) as h:  # its clock begins on Tuesday, 1 January 2030, 00:00 UTC
        run = await h.start(report, id="report", cron="0 */6 * * *")
        print((await run.describe()).why)
        await h.advance("12 hours")
        await h.advance("3 days", run=False)  # no worker runs: many ticks are missed
        await h.run_until_idle()  # one run makes up for all of them
        await h.advance("6 hours")
        print(*reports, sep="\n")

        await run.terminate("no more reports")  # or cancel: this is how a schedule ends
        await h.advance("1 day")
        print(len(reports), "reports,", (await run.describe()).why)

        berlin = await h.start(report, id="berlin", cron="TZ=Europe/Berlin 30 9 * * MON-FRI")
        print((await berlin.describe()).why)


if __name__ == "__main__":
    asyncio.run(main())
