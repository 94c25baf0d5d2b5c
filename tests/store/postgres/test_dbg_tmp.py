import pytest
from store.postgres.test_plans import *
from store.postgres.test_plans import _fill_units
@pytest.mark.parametrize("early", [0, 1])
async def test_dbg(world, other, early):
    for statement in await other.fetch(BY_HAND):
        await other.execute(statement[0])
    if early:
        await other.execute("ANALYZE")
    await world.graph("graph", unit(1), *(NewUnit(n, str(n), 1) for n in range(2, 7)), owner=None)
    task = (await world.take("adder", lease_ms=10**9)).task
    await world.commit(task, outbox=[Outbound("t", None, "s")])
    await world.store.outbox_claim("carrier", 10**9, 1)
    reading = Reading(other, world)
    small = {name: await reading.of(work, argument(task), scans=True) for name, (work, argument) in UNIT_CALLS.items()}
    task = await _fill_units(world, task, 30)
    task = await _fill_units(world, task, 2_000)
    for name, (work, argument) in UNIT_CALLS.items():
        await other.execute("SELECT pg_stat_force_next_flush()")
        await other.execute("BEGIN")
        tx = Tx(other, "holdfast", await world.now(), "me")
        await work(tx, argument(task))
        rows = await other.fetch("SELECT relname, seq_scan, seq_tup_read, idx_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname='holdfast' AND coalesce(seq_tup_read,0)+coalesce(idx_tup_fetch,0)>50")
        await other.execute("ROLLBACK")
        print(early, name, small[name], [tuple(r) for r in rows])
