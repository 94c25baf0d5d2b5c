"""``holdfast move`` carries what belongs to runs: permits, rates, streams, blobs, queues and start policies."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from driving import until, until_status
from holdfast import Batch, Context, Handle, Holdfast, Rate, WorkerConfig
from holdfast.cli.transfer import Address, move_runs
from holdfast.payloads import Aes

from .transferring import killed, places, quiet


def limited(address: Address) -> Holdfast:
    """An app with a limit that a run holds until its end, and a rate of one call an hour."""
    app = Holdfast(address.url, schema=address.schema, worker=WorkerConfig(lease="1 second"))
    one, hourly = app.limit("one", concurrency=1), app.limit("hourly", rate=Rate(1, "1 hour"))

    @app.step(limits=[hourly])
    async def call() -> str:
        return "called"

    @app.workflow(limits=[one], hold="until_end")
    async def hold(ctx: Context) -> str:
        await ctx.wait_for_event("end", type="end")
        return "ended"

    @app.workflow
    async def calls(ctx: Context) -> str:
        return await call()

    return app


async def _waits_for(run: Handle[Any], limit: str) -> bool:
    return f"limit '{limit}'" in (await run.describe()).why


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_permits_and_rates_hold_after_a_move(tmp_path: Path, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        source, target = (sqlite, postgres) if kind == "sqlite" else (postgres, sqlite)
        app = limited(source)
        async with app:
            await app.set_limit("one", concurrency=1, rate=None)
            await until_status(await app.start("hold", id="first"), "waiting")
            assert await (await app.start("calls", id="now")).result("20 seconds") == "called"
            for workflow, instance, limit in (("hold", "second", "one"), ("calls", "later", "hourly")):
                waiting = await app.start(workflow, id=instance)
                await until(lambda waiting=waiting, limit=limit: _waits_for(waiting, limit))
        before = datetime.now(UTC)
        await move_runs(source, target, quiet)

        moved = limited(target)
        async with moved:
            first, second = [await moved.get("hold", name) for name in ("first", "second")]
            later = await moved.get("calls", "later")
            await until(lambda: _waits_for(second, "one"))
            await until(lambda: _waits_for(later, "hourly"))
            waits = [limit.oldest_waiting for limit in await moved.list_limits()]
            assert all(since is not None and since >= before for since in waits)  # the requests of the target
            await second.send_event("end")
            await first.send_event("end")
            assert await first.result("20 seconds") == await second.result("20 seconds") == "ended"
            assert [(limit.name, limit.used) for limit in await moved.list_limits()] == [("hourly", 0), ("one", 0)]


def stored_parts(address: Address) -> Holdfast:
    """An app whose runs have streams, blobs, encrypted values and start policies."""
    app = Holdfast(
        address.url, schema=address.schema, worker=WorkerConfig(lease="1 second", queues=("default", "night")),
        codec=Aes({"k": b"k" * 32}), blobs="database", blob_threshold="1 KiB",
    )  # fmt: skip

    @app.workflow
    async def talk(ctx: Context, text: str) -> str:
        stream = ctx.stream("out")
        await stream.write(text)
        await ctx.wait_for_event("more", type="more")
        await stream.write("end")
        await stream.close()
        return text

    @app.workflow(batch=Batch(size=2, wait="1 day"))
    async def index(ctx: Context, numbers: list[int]) -> int:
        return sum(numbers)

    return app


LARGE = "large " * 1000


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_streams_blobs_queues_and_start_policies_survive_a_killed_move(tmp_path: Path, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        source, target = (sqlite, postgres) if kind == "sqlite" else (postgres, sqlite)
        app = stored_parts(source)
        async with app:
            await until_status(await app.start("talk", LARGE, id="talk"), "waiting")
            single = [await app.start("talk", name, id=name, singleton="queue") for name in ("first", "second")]
            await until_status(single[0], "waiting")
            batch = await app.start("index", 1)
            await app.pause_queue("night")
            await app.start("talk", "paused", id="paused", queue="night")
        for write in (4, 3):
            killed(write, "move", source.url, postgres.schema, target.url)
        await move_runs(source, target, quiet)

        moved = stored_parts(target)
        async with moved:
            assert [queue.name for queue in await moved.queues() if queue.paused] == ["night"]
            assert (await (await moved.get("talk", "paused")).describe()).started_at is None
            assert (await (await moved.get("talk", "second")).describe()).started_at is None
            assert (await moved.start("index", 2)).id == batch.id
            assert await (await moved.get("index", batch.id)).result("10 seconds") == 3
            await moved.resume_queue("night")
            for name in ("talk", "first", "second", "paused"):
                run = await moved.get("talk", name)
                await run.send_event("more")
                items = [item.value async for item in run.stream("out")]
                assert items == [await run.result("10 seconds"), "end"]
