"""``holdfast export``, ``import`` and ``move``: all runs arrive, continue where they were, and survive a kill."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import (
    ChainTask,
    Completed,
    Context,
    Holdfast,
    Outbound,
    Outcome,
    StoreReadOnlyError,
    Waiting,
    WorkerConfig,
)
from holdfast.cli.errors import TransferError
from holdfast.cli.transfer import Address, export_runs, import_runs, move_runs, open_again
from holdfast.store.protocol.transfer import TABLES
from holdfast.store_url import migrate

from .running import holdfast
from .transferring import killed, places, quiet

STRANGE = "nul \x00 and a lone surrogate \ud800"


def program(address: Address, delivered: list[Any] | None = None) -> Holdfast:
    """An app with every authoring model."""
    app = Holdfast(address.url, schema=address.schema, worker=WorkerConfig(lease="1 second"))

    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def order(ctx: Context, n: int) -> list[Any]:
        first = await double(n)
        ctx.set_search(total=1.5, customer=STRANGE, count=3)
        ctx.log.info(STRANGE)
        event = await ctx.wait_for_event("approval", type="go", timeout="30 days")
        return [first, event.payload]

    @app.workflow
    async def nap(ctx: Context) -> str:
        await ctx.sleep("nap", "1 second")
        return "slept"

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        return await ctx.run("order", 5, id="child")

    @app.workflow
    async def tick(ctx: Context) -> None: ...

    chain = app.chain("chain")

    @chain.step("PAY")
    async def pay(task: ChainTask) -> Outcome:
        return Completed("paid") if task.event else Waiting("paid", timeout="1 day", outbound=[Outbound("due", 7)])

    graph = app.graph("graph")

    @graph.node
    async def numbers(params: list[int]) -> list[int]:
        return params

    @graph.node(map=numbers)
    async def squares(numbers: int) -> int:
        return numbers**2

    graph.node(name="ordered", after=[squares], run=order, input=lambda squares: sum(squares))

    if delivered is not None:
        app.outbox(lambda event: delivered.append(event.payload))
    return app


async def _reaches(app: Holdfast, workflow: str, instance: str, status: str) -> None:
    while (await (await app.get(workflow, instance)).status()).status != status:
        await asyncio.sleep(0.01)


async def fill(address: Address) -> None:
    """Runs of every model, in every state."""
    app = program(address)
    async with app:
        await app.start("order", 1, id="waiting", memo={"note": STRANGE})
        done = await app.start("order", 2, id="done")
        await done.send_event("go", STRANGE, id="once")
        await app.start("parent", id="parent")
        await app.start("tick", id="tick", cron="0 0 1 1 *")
        await app.start("chain", id="chain")
        await app.start("graph", [1, 2], id="graph")
        await app.start("order", 3, id="paused")
        await done.result("10 seconds")
        for workflow, instance in (
            ("order", "waiting"), ("chain", "chain"), ("parent", "parent"), ("order", "child"), ("order", "paused")
        ):  # fmt: skip
            await _reaches(app, workflow, instance, "waiting")
        while (await app.list("order")).items[0].details.status != "waiting" or len(
            (await app.list("order")).items
        ) < 5:
            await asyncio.sleep(0.01)
        await (await app.get("order", "paused")).pause()
        await (await app.get("order", "waiting")).send_event("other", {"kept": True})
        await app.start("nap", id="nap")
        await app.schedules.create("yearly", "tick", cron="0 0 1 1 *", overlap="queue_all", note=STRANGE)
        await (await app.schedules.trigger("yearly")).result("10 seconds")
        await app.schedules.pause("yearly", STRANGE)


async def finish(address: Address) -> None:
    """Let every run continue, and check its result."""
    delivered: list[Any] = []
    app = program(address, delivered)
    async with app:
        await (await app.get("order", "waiting")).send_event("go", "a")
        assert await (await app.get("order", "waiting")).result("10 seconds") == [2, "a"]
        assert await (await app.get("order", "done")).result("10 seconds") == [4, STRANGE]
        await (await app.get("order", "child")).send_event("go", "b")
        assert await (await app.get("parent", "parent")).result("10 seconds") == [10, "b"]
        await (await app.get("chain", "chain")).send_event("paid")
        assert await (await app.get("chain", "chain")).result("10 seconds") == "paid"
        paused = await app.get("order", "paused")
        await paused.resume()
        await paused.send_event("go", "c")
        assert await paused.result("10 seconds") == [6, "c"]
        assert await (await app.get("nap", "nap")).result("10 seconds") == "slept"
        [node] = [item.id for item in (await app.list("order")).items if item.details.status == "waiting"]
        await (await app.get("order", node)).send_event("go", "d")
        graph = await app.get("graph", "graph")
        await graph.result("10 seconds")
        assert (await graph.results())["ordered"] == [10, "d"]
        tick = await (await app.get("tick", "tick")).describe()
        assert (tick.status, tick.run_number) == ("waiting", 0)
        found = await app.list("order", search={"customer": STRANGE, "total": (">=", 1.5)})
        assert len(found.items) == 5
        assert (await (await app.get("order", "waiting")).describe()).memo == {"note": STRANGE}
        logs = await paused.logs(category="workflow")
        assert [line.message for line in logs if not line.is_replay] == [STRANGE]
        while not delivered:
            await asyncio.sleep(0.01)
        assert delivered == [7]
        assert [record.action for record in (await app.audit()).items].count("pause") == 1
        await _continue_schedule(app)
        await (await app.start("nap", id="new")).pause()
        assert [record.action for record in (await app.audit()).items].count("pause") == 2


async def _continue_schedule(app: Holdfast) -> None:
    """Check a moved schedule with its ticks, and that its next tick has the next number."""
    moved = await app.schedules.get("yearly")
    assert (moved.paused, moved.note, moved.overlap) == (True, STRANGE, "queue_all")
    assert [(run.cause, run.outcome) for run in moved.last_runs] == [("trigger", "complete")]
    await app.schedules.resume("yearly")
    first = datetime(2024, 1, 1, tzinfo=UTC)
    assert await app.schedules.backfill("yearly", first, first) == 1
    while (backfilled := (await app.schedules.get("yearly")).last_runs[0]).outcome != "complete":
        await asyncio.sleep(0.01)
    assert (backfilled.scheduled_for, backfilled.cause) == (first, "backfill")
    assert len((await app.schedules.get("yearly")).last_runs) == 2


async def test_runs_of_every_model_move_to_postgres_and_continue(tmp_path: Path) -> None:
    said: list[str] = []
    async with places(tmp_path) as (sqlite, postgres):
        await fill(sqlite)

        await move_runs(sqlite, postgres, said.append)

        await finish(postgres)
        with pytest.raises(StoreReadOnlyError, match="it was moved to"):
            await program(sqlite).__aenter__()
        with pytest.raises(TransferError, match="it was moved to"):
            await move_runs(sqlite, postgres, quiet)
        with pytest.raises(TransferError, match="it was moved to"):
            await open_again(sqlite, quiet)
    assert "counts and digests are equal" in said[0]


async def test_runs_of_every_model_move_to_sqlite_and_continue(tmp_path: Path) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        await fill(postgres)

        await move_runs(postgres, sqlite, quiet)

        await finish(sqlite)


async def test_an_export_can_be_imported(tmp_path: Path) -> None:
    sqlite, copy = (Address(f"sqlite:///{tmp_path / name}", None) for name in ("shop.db", "copy.db"))
    await fill(sqlite)

    await export_runs(sqlite, tmp_path / "shop.jsonl", quiet)
    await import_runs(tmp_path / "shop.jsonl", copy, quiet)

    await finish(copy)
    await finish(sqlite)  # after an export the source can be used
    lines = (tmp_path / "shop.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["holdfast-export"] == 1
    assert {"table", "id", "workflow", "status"} <= json.loads(lines[1]).keys()
    with pytest.raises(TransferError, match="not empty"):
        await import_runs(tmp_path / "shop.jsonl", copy, quiet)
    with pytest.raises(TransferError, match="complete"):
        await export_runs(sqlite, tmp_path / "shop.jsonl", quiet)


# --------------------------------------------------------------------------------------------------- interrupted


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_move_that_was_killed_is_resumed(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        source, target = (sqlite, postgres) if kind == "sqlite" else (postgres, sqlite)
        await fill(source)
        for write in (2, 9, 3) if not request.config.getoption("--long") else range(2, 15):
            killed(write, "move", source.url, postgres.schema, target.url)
        for address in (sqlite, postgres):
            with pytest.raises(StoreReadOnlyError):
                await program(address).__aenter__()

        await move_runs(source, target, quiet)

        await finish(target)


async def test_an_export_that_was_killed_is_resumed(tmp_path: Path) -> None:
    sqlite, copy = (Address(f"sqlite:///{tmp_path / name}", None) for name in ("shop.db", "copy.db"))
    file = tmp_path / "shop.jsonl"
    await fill(sqlite)
    for line in (1, 3, 20):
        killed(line, "export", sqlite.url, "", file)
    with pytest.raises(TransferError, match="not complete"):
        await import_runs(file, copy, quiet)
    with file.open("ab") as out:
        out.write(b'{"table": "fact", "ru')  # a line that the killed process did not finish

    await export_runs(sqlite, file, quiet)

    await import_runs(file, copy, quiet)
    await finish(copy)


async def test_an_import_that_was_killed_is_resumed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "shop.jsonl"
    async with places(tmp_path) as (sqlite, postgres):
        await fill(sqlite)
        await export_runs(sqlite, file, quiet)
        for write in (1, 6) if not request.config.getoption("--long") else range(1, 15):
            killed(write, "import", file, postgres.schema, postgres.url)
        with pytest.raises(StoreReadOnlyError, match="a transfer into it is not complete"):
            await program(postgres).__aenter__()

        await import_runs(file, postgres, quiet)

        await finish(postgres)


async def test_an_interrupted_transfer_can_be_given_up(tmp_path: Path) -> None:
    sqlite = Address(f"sqlite:///{tmp_path / 'shop.db'}", None)
    await fill(sqlite)
    killed(4, "export", sqlite.url, "", tmp_path / "shop.jsonl")

    await open_again(sqlite, quiet)

    await finish(sqlite)


# --------------------------------------------------------------------------------------------------- columns

COMPUTED = {
    "run": {"error_name", "made_by"},
    "task": {
        "owner",
        "lease_until",
        "lease_ms",
        "claimed_by",
        "bound",
        "started_at",
        "permits",
        "gathered",
        "fair_key",
    },
    "fact": {"written_by"},
    "event": {"sent_by", "replied_at"},
    "term": {"head", "text", "number"},
    "outbox": {"owner", "due_at"},
    "bulk": {"owner", "lease_until"},
    "limit_use": {"used", "pass", "virtual", "ready_at", "freed"},
    "permit": {"id", "grp", "state", "tag", "until_end", "owner", "epoch", "parked", "woken"},
}
"""Columns that are not carried: a store computes them, or they hold only while a worker or a call runs."""
NOT_CARRIED = {"meta", "worker", "outlet", "receipt", "leftover", "fence", "tally", "permit_group", "fair_key"}
"""Tables that are not carried."""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_column_of_a_store_is_carried_or_computed(tmp_path: Path, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        await migrate(sqlite.url)
        columns = await (_sqlite_columns(sqlite) if kind == "sqlite" else _postgres_columns(postgres))

    assert {name for name in columns if name not in NOT_CARRIED} == {table.name for table in TABLES}
    for table in TABLES:
        assert columns[table.name] - COMPUTED.get(table.name, set()) <= {*table.names}, table.name


async def _sqlite_columns(address: Address) -> dict[str, set[str]]:
    with closing(sqlite3.connect(address.url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(
            "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_xinfo(m.name) AS c "
            "WHERE m.type = 'table' AND m.name LIKE 'holdfast_%'"
        ).fetchall()
    return _by_table(rows)


async def _postgres_columns(address: Address) -> dict[str, set[str]]:
    connection = await asyncpg.connect(address.url)
    rows = await connection.fetch(
        "SELECT c.table_name, c.column_name FROM information_schema.columns AS c "
        "JOIN information_schema.tables AS t USING (table_schema, table_name) "
        "WHERE table_schema = $1 AND t.table_type = 'BASE TABLE'",
        address.schema,
    )
    await connection.close()
    return _by_table([tuple(row) for row in rows])


def _by_table(rows: list[Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for table, column in rows:
        found.setdefault(table.removeprefix("holdfast_"), set()).add(column)
    return found


# --------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_database_with_a_living_worker_is_not_moved(tmp_path: Path, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        source = sqlite if kind == "sqlite" else postgres
        target = Address(f"sqlite:///{tmp_path / 'target.db'}", None)
        app = program(source)
        async with app:
            while not await app.workers():
                await asyncio.sleep(0.01)
            with pytest.raises(TransferError, match="workers are alive"):
                await move_runs(source, target, quiet)
            run = await app.start("nap", id="still-works")
            assert await run.result("10 seconds") == "slept"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_client_that_had_the_source_open_cannot_write_to_it_any_more(tmp_path: Path, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        source = sqlite if kind == "sqlite" else postgres
        app = program(source)
        async with app.connect():
            await app.start("nap", id="before")
            await move_runs(source, Address(f"sqlite:///{tmp_path / 'target.db'}", None), quiet)

            with pytest.raises(StoreReadOnlyError):
                await app.start("nap", id="after")
            with pytest.raises(StoreReadOnlyError):
                await app.tick()


def test_the_commands_report_what_they_did(tmp_path: Path) -> None:
    assert holdfast("migrate", "sqlite:///a.db", cwd=tmp_path).returncode == 0

    exported = holdfast("export", "sqlite:///a.db", "a.jsonl", cwd=tmp_path)
    imported = holdfast("import", "a.jsonl", "sqlite:///b.db", cwd=tmp_path)
    moved = holdfast("move", "sqlite:///b.db", "sqlite:///c.db", cwd=tmp_path)
    again = holdfast("move", "sqlite:///b.db", "sqlite:///d.db", cwd=tmp_path)

    assert exported.stdout == (
        "0 runs (0 rows) were exported from sqlite:///a.db to a.jsonl; counts and digests are equal\n"
    )
    assert imported.returncode == moved.returncode == 0
    assert (again.returncode, again.stderr) == (
        1,
        "holdfast: sqlite:///b.db cannot be the source: it was moved to sqlite:///c.db\n",
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_target_with_rows_of_any_kind_is_refused(tmp_path: Path, kind: str) -> None:
    async with places(tmp_path) as (sqlite, postgres):
        source, target = (sqlite, postgres) if kind == "postgres" else (postgres, sqlite)
        await migrate(source.url, schema=source.schema)
        app = Holdfast(target.url, schema=target.schema)
        async with app.connect():
            await app.pause_queue("bulk")

        with pytest.raises(TransferError, match=r"cannot be the target: it is not empty: holdfast_\w+ has rows"):
            await move_runs(source, target, quiet)
