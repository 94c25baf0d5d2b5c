"""Messages by topic: two channels and ``select``. A message sent before ``listen`` is kept for the channel.

Run it: python examples/processes/topics.py
"""

import asyncio
from typing import Any

from holdfast import Context, Holdfast, select

app = Holdfast("sqlite://")


@app.step
async def echo(job: dict[str, Any]) -> str:
    return f"done: {job['text']}"


@app.workflow
async def jobs(ctx: Context) -> dict[str, Any]:
    add_job, leave = ctx.listen("add_job"), ctx.listen("exit")
    results: list[dict[str, Any]] = []
    while (chosen := await select(add_job, leave)).channel is not leave:  # if both are ready, the first is chosen
        job = chosen.value
        results.append({"job": job["id"], "result": await echo(job)})
    return {"total": len(results), "results": results}


async def main() -> None:
    async with app:
        run = await app.start(jobs)
        for number, text in enumerate(["wash", "dry", "iron"], 1):
            await run.send_event("add_job", {"id": number, "text": text})
        await run.send_event("exit")
        result = await run.result()
        print(result["total"], "jobs")
        for job_result in result["results"]:
            print(job_result)


if __name__ == "__main__":
    asyncio.run(main())
