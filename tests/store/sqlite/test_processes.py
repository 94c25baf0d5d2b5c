"""Several processes on one file, and the writes of a process that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from holdfast.store.protocol import NewRun
from holdfast.store.sqlite import SqliteStore
from store.processes import finish
from store.sqlite.internals import process
from store.world import FLOW, FakeClock, World


async def test_processes_claim_disjoint_tasks(path: str, clock: FakeClock) -> None:
    store = SqliteStore(path, clock=clock)
    await store.open()
    await store.create([NewRun(FLOW, f"r{n}") for n in range(300)])
    code = """
        from holdfast.core.model import Status

        async def main():
            store = SqliteStore(path, clock=FakeClock())
            await store.open()
            world, done = World(store, FakeClock()), []
            while claims := (await world.claim(sys.argv[2], limit=7)).claims:
                ends = [turn(one.task, facts=[result("s")], then=Finish(Status.COMPLETE)) for one in claims]
                answers = await store.commit(ends)
                assert {one.verdict for one in answers} == {Verdict.APPLIED}
                done += [one.run.instance_id for one in claims]
            await store.close()
            import json; print(json.dumps(done))

        asyncio.run(main())
    """

    started = [process(code, path, f"w{n}") for n in range(3)]
    done = [name for one in started for name in json.loads(finish(one))]

    assert sorted(done) == sorted(f"r{n}" for n in range(300))
    assert await World(store, clock).ids(status="complete", limit=500) == [f"r{n}" for n in reversed(range(300))]
    await store.close()


@pytest.mark.promise("durability")
async def test_acknowledged_commits_survive_a_kill(path: str, clock: FakeClock) -> None:
    code = """
        async def main():
            store = SqliteStore(path, clock=FakeClock())
            await store.open()
            world = World(store, FakeClock())
            task = await world.start_claimed("a")
            async def work(k):
                for n in range(10**9):
                    await world.commit(task, facts=[result(f"{k}-{n}")])
                    print(f"{k}-{n}", flush=True)
            await asyncio.gather(*(work(k) for k in range(5)))

        asyncio.run(main())
    """

    for _ in range(3):
        started = process(code, path)
        assert started.stdout is not None
        acknowledged = [started.stdout.readline().strip() for _ in range(200)]
        started.kill()
        # Not by communicate(), which would skip what readline() has left in the buffer.
        acknowledged += [line.strip() for line in started.stdout if line.endswith("\n")]
        started.communicate()

        store = SqliteStore(path, clock=clock)
        await store.open()
        world = World(store, clock)
        run = await world.find("a")
        stored = set(await world.keys(run.run))
        assert len(acknowledged) >= 200
        assert not set(acknowledged) - stored
        await store.close()
        connection = apsw.Connection(path)
        assert connection.pragma("integrity_check") == "ok"
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            Path(path + suffix).unlink(missing_ok=True)


async def test_writes_of_many_processes_leave_a_sound_file(path: str, clock: FakeClock) -> None:
    code = """
        async def main():
            store = SqliteStore(path, clock=FakeClock())
            await store.open()
            for n in range(40):
                await store.create([NewRun(FLOW, f"{sys.argv[2]}-{n}-{i}", b"x" * 2000) for i in range(10)])
                store._writer.tx._wal_pages = 10**6  # checkpoint and restart the WAL as often as possible
            await store.close()

        asyncio.run(main())
    """

    for one in [process(code, path, f"p{n}") for n in range(4)]:
        finish(one)

    connection = apsw.Connection(path)
    assert connection.pragma("integrity_check") == "ok"
    assert connection.execute("SELECT count(*) FROM holdfast_run").get == 4 * 40 * 10
