"""A run with a damaged row is parked, or its reads fail with a clear error; other runs continue."""

from __future__ import annotations

import random
from typing import Any

import apsw
import asyncpg
import httpx
import pytest

from apps import MakeApp
from holdfast import ChainTask, Completed, Context, Holdfast, InstanceDescription, Waiting, WorkerConfig
from holdfast.errors import DamagedRunError, HoldfastError

SOON = 15
RESULTS = {"flow": 12, "chain": 12, "graph": {"first": [3, 3], "each": [6, 6], "last": 12}}
KINDS = [*RESULTS]


def define(app: Holdfast) -> Holdfast:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        doubled = await double(n)
        await ctx.wait_for_event("go", type="go")
        return await double(doubled)

    chain = app.chain("chain")

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        return Completed({"n": task.params})

    @chain.step("B")
    async def b(task: ChainTask) -> Any:
        return Waiting("go", timeout="1 hour") if task.event is None else Completed(task.outputs["A"]["n"] * 4)

    graph = app.graph("graph")

    @graph.node
    async def first(params: int) -> list[int]:
        return [params, params]

    @graph.node(map=first)
    async def each(first: int) -> int:
        return first * 2

    graph.node(name="last", run=flow, input=lambda each: each[0] // 2, after=[each])
    return app


def make(make_app: MakeApp) -> Holdfast:
    return define(make_app(worker=WorkerConfig(poll="50 ms")))


async def execute(app: Holdfast, sql: str) -> None:
    """Execute SQL on the app's database, past the engine."""
    if app.schema is None:
        connection = apsw.Connection(app.url.removeprefix("sqlite:///"))
        try:
            connection.execute(sql)
        finally:
            connection.close()
        return
    server = await asyncpg.connect(app.url, server_settings={"search_path": app.schema})
    try:
        await server.execute(sql)
    finally:
        await server.close()


async def start_runs(app: Holdfast) -> None:
    """Start a run of each kind to be damaged, and one to compare, and let all of them wait for their event."""
    async with app:
        runs = [await app.start(kind, 3, id=f"{kind}-{which}") for kind in KINDS for which in ("bad", "good")]
        for run in runs:
            while "'go'" not in (why := (await run.describe()).why) and "'last'" not in why:
                await app.tick()


async def send_all(app: Holdfast) -> None:
    for summary in (await app.list(limit=50)).items:
        run = await app.get(summary.workflow_name, summary.id)
        if summary.workflow_name != "graph":
            try:
                await run.send_event("go")
            except HoldfastError:
                assert "bad" in run.id


async def read_after_damage(app: Holdfast, kind: str) -> InstanceDescription | None:
    """End all runs but the damaged one, and read that one as a user does. None: its data cannot be read."""
    async with app:
        await send_all(app)
        for other in KINDS:
            run = await app.get(other, f"{other}-good")
            assert await run.result(timeout=SOON) == RESULTS[other]
        try:
            bad = await app.get(kind, f"{kind}-bad")
            while (seen := await bad.describe()).status == "active" and "damaged" not in seen.why:
                await app.tick()
            await bad.history()
            await bad.logs()
        except HoldfastError:
            return None
        return seen


def of_bad(kind: str) -> str:
    return f"(SELECT id FROM holdfast_run WHERE instance_id = '{kind}-bad')"


@pytest.mark.promise("isolation-of-runs")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_with_an_unknown_status_is_parked_and_other_runs_continue(make_app: MakeApp, kind: str) -> None:
    app = make(make_app)
    await start_runs(app)
    await execute(app, f"UPDATE holdfast_run SET status = 'odd' WHERE instance_id = '{kind}-bad'")

    seen = await read_after_damage(make(make_app), kind)

    assert seen is not None
    assert seen.status == "paused"
    assert "RUN_DAMAGED: the stored status 'odd' is unknown" in seen.why


BLOB = {"sqlite": "x'{}'", "postgres": r"'\x{}'::bytea"}
VALUES = {"open brace": b"{bad", "no text": b"\xff\xfe", "empty": b"", "list": b"[]"}


@pytest.mark.parametrize(
    ("kind", "table", "column", "where", "value"),
    [
        ("flow", "run", "options", "true", "list"),
        ("flow", "run", "params", "true", "no text"),
        ("flow", "fact", "value", "state = 0", "open brace"),
        ("chain", "run", "options", "true", "no text"),
        ("chain", "fact", "value", "state = 3", "list"),
        ("graph", "fact", "value", "state = 3", "empty"),
        ("graph", "run", "options", "true", "no text"),
    ],
)
async def test_a_run_with_a_value_that_is_not_json_does_not_stop_other_runs(
    make_app: MakeApp, store_kind: str, kind: str, table: str, column: str, where: str, value: str
) -> None:
    app = make(make_app)
    await start_runs(app)
    blob = BLOB[store_kind].format(VALUES[value].hex())
    key = "id" if table == "run" else "run"
    await execute(app, f"UPDATE holdfast_{table} SET {column} = {blob} WHERE {key} = {of_bad(kind)} AND {where}")

    seen = await read_after_damage(make(make_app), kind)

    assert seen is None or seen.status == "paused"
    assert seen is None or "damaged" in seen.why or "RUN_DAMAGED" in seen.why


async def test_a_damaged_step_result_parks_the_run_and_a_repaired_one_continues(
    make_app: MakeApp, store_kind: str
) -> None:
    app = make(make_app)
    await start_runs(app)
    update = f"UPDATE holdfast_fact SET value = {{}} WHERE run = {of_bad('flow')} AND state = 0 AND kind = 'do'"
    await execute(app, update.format(BLOB[store_kind].format(b"{bad".hex())))
    app = make(make_app)
    async with app:
        run = await app.get("flow", "flow-bad")
        await run.send_event("go")
        while (await run.status()).status != "paused":
            await app.tick()
        with pytest.raises(DamagedRunError, match=r"run flow/flow-bad \(run 0\) is damaged"):
            await run.describe()

        await execute(app, update.format(BLOB[store_kind].format(b"6".hex())))
        assert "RUN_DAMAGED: the recorded result of 'double' cannot be read" in (await run.describe()).why
        await run.resume()

        assert await run.result(timeout=SOON) == 12


async def test_a_list_shows_a_run_whose_output_is_damaged(make_app: MakeApp, store_kind: str) -> None:
    app = make(make_app)
    async with app:
        run = await app.start("flow", 1, id="done")
        await run.send_event("go")
        assert await run.result(timeout=SOON) == 4
        blob = BLOB[store_kind].format(b"{bad".hex())
        await execute(app, f"UPDATE holdfast_run SET output = {blob} WHERE instance_id = 'done'")

        [summary] = (await app.list("flow")).items

        assert summary.details.status == "complete"
        assert summary.details.error is not None
        assert summary.details.error.name == "DamagedRunError"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app.asgi()), base_url="http://localhost") as http:
            [listed] = (await http.get("/api/workflows/_instances")).json()["instances"]
            assert "run flow/done (run 0) is damaged" in listed["why"]
            refused = await http.get("/api/workflows/flow/instances/done")
            assert (refused.status_code, refused.json()["code"]) == (500, "RUN_DAMAGED")
            assert "run flow/done (run 0) is damaged" in refused.json()["message"]
        with pytest.raises(DamagedRunError):
            await run.status()


ODD: list[Any] = [b"{bad", b"", b"null", b"[]", b"\xff\xfe", "odd", "", -1, 2**62, 0, None, 7]
TABLES = {
    "holdfast_run": ["id"],
    "holdfast_task": ["run", "unit"],
    "holdfast_fact": ["run", "state", "key", "n"],
    "holdfast_event": ["run", "n"],
}


def damage_a_row(database: str, kind: str, chance: random.Random) -> str:
    """Change or delete one value of one row that belongs to a run; returns a description."""
    connection = apsw.Connection(database)
    try:
        table = chance.choice([*TABLES])
        key = TABLES[table]
        rows = list(connection.execute(f"SELECT {', '.join(key)} FROM {table} WHERE {key[0]} = {of_bad(kind)}"))
        if not rows:
            return f"no row in {table}"
        row = chance.choice(rows)
        where = " AND ".join(f"{column} IS ?" for column in key)
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        column = chance.choice([*columns, None])
        if column is None:
            connection.execute(f"DELETE FROM {table} WHERE {where}", row)
            return f"deleted {table} {row}"
        if column in ("workflow", "instance_id", "id", "run"):
            return "a run without its name is another run"
        value = chance.choice(ODD)
        try:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *row))
        except apsw.Error as error:
            return f"SQLite refuses {table}.{column} = {value!r}: {error}"
        return f"{table}.{column} = {value!r} in {row}"
    finally:
        connection.close()


@pytest.mark.above_the_store
async def test_a_random_damaged_value_affects_only_its_own_run(
    make_app: MakeApp, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in range(300 if request.config.getoption("--long") else 3):
        chance = random.Random(seed)
        kind = chance.choice(KINDS)
        app = make(make_app)
        database = app.url.removeprefix("sqlite:///")
        for table in (*TABLES, "holdfast_log", "holdfast_watch"):
            if seed:
                await execute(app, f"DELETE FROM {table}")
        await start_runs(app)
        what = damage_a_row(database, kind, chance)
        caplog.clear()
        damaged = make(make_app)
        async with damaged:
            await send_all(damaged)
            for other in KINDS:
                run = await damaged.get(other, f"{other}-good")
                assert await run.result(timeout=SOON) == RESULTS[other], f"seed {seed}: {what}"
        assert "unexpected error, trying again" not in caplog.text, f"seed {seed}: {what}"
