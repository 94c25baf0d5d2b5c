"""Measure lists of many runs: ``python tests/dashboard/measure_lists.py [--runs N] [--store sqlite|postgres]``.

Fills a database with finished runs of ten workflows, a twentieth of them errored, and prints the median and the 95th
percentile of the time in which the server makes one page of 25 runs. With ``--browser``, also the time in which a
browser paints the first data of the overview and of the list.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import httpx

sys.path.insert(0, str(Path(__file__).parents[2]))  # a script finds only the modules beside it

from bench import postgres

from holdfast import Context, Holdfast

COLUMNS = (
    "(id, instance, workflow, instance_id, number, current, kind, status, params, output, error, queue, priority,"
    " created_at, updated_at, started_at, completed_at, seed)"
)
ERROR = '{"name":"KeyError","message":"vat_id"}'
VALUES = (
    "SELECT n, n, 'flow' || (n % 10), 'r-' || n, 0, {true}, 'workflow', CASE WHEN n % 20 = 7 THEN 'errored' ELSE"
    " 'complete' END, {five}, CASE WHEN n % 20 = 7 THEN NULL ELSE {five} END,"
    " CASE WHEN n % 20 = 7 THEN {error} ELSE NULL END, 'default', 0, {at}, {at} + 40, {at} + 1, {at} + 40, n"
)
LISTS = {
    "all runs": "",
    "of one workflow": "workflow=flow3",
    "with a status": "status=errored",
    "of one workflow, with an error": "workflow=flow7&error=KeyError",
    "with the beginning of an id": "idPrefix=r-12345",
}
ROUNDS = 60
SPACING_MS = 100
"""The runs begin at this distance, the last one now."""


def fill_sqlite(path: Path, runs: int) -> None:
    begin = int(time.time() * 1000) - runs * SPACING_MS
    values = VALUES.format(
        true=1, five="CAST('5' AS BLOB)", error=f"CAST('{ERROR}' AS BLOB)", at=f"({begin} + n * {SPACING_MS})"
    )
    with sqlite3.connect(path) as connection:
        connection.execute(
            f"INSERT INTO holdfast_run {COLUMNS} WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s"
            f" WHERE n < {runs}) {values} FROM s"
        )
        connection.execute("ANALYZE")


async def fill_postgres(url: str, runs: int) -> None:
    begin = int(time.time() * 1000) - runs * SPACING_MS
    values = VALUES.format(
        true="true", five="'5'::bytea", error=f"'{ERROR}'::bytea", at=f"({begin} + n * {SPACING_MS}::bigint)"
    )
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"INSERT INTO holdfast.holdfast_run {COLUMNS} {values} FROM generate_series(1, {runs}::bigint) AS n",
        timeout=900,
    )
    await connection.execute(f"SELECT setval('holdfast.holdfast_run_id', {runs + 1})")
    await connection.execute("VACUUM ANALYZE", timeout=900)
    await connection.close()


def make_app(url: str) -> Holdfast:
    app = Holdfast(url)
    for number in range(10):

        @app.workflow(name=f"flow{number}")
        async def flow(ctx: Context, params: int) -> int:
            return params

    return app


def shown(times: list[float]) -> str:
    ordered = sorted(times)
    return f"median {ordered[len(ordered) // 2]:.1f} ms, p95 {ordered[int(len(ordered) * 0.95)]:.1f} ms"


async def measure(app: Holdfast, store: str) -> None:
    transport = httpx.ASGITransport(app=app.dashboard(), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/_api/", timeout=60) as http:

        async def timed(query: str) -> tuple[float, httpx.Response]:
            began = time.perf_counter()
            response = await http.get(f"_instances?{query}")
            took = (time.perf_counter() - began) * 1000
            assert response.status_code == 200, response.text
            return took, response

        for name, query in LISTS.items():
            times = [(await timed(query))[0] for _ in range(ROUNDS)]
            print(f"{store}, {name}: {shown(times)}", flush=True)
        cursor, times = f"i{RUNS // 2}", []
        for _ in range(ROUNDS):
            took, response = await timed(f"cursor={cursor}")
            times.append(took)
            cursor = response.json()["nextCursor"]
        print(f"{store}, pages in the middle, one after the other: {shown(times)}", flush=True)


async def paint(app: Holdfast) -> None:
    from browser_visit import open_browser, serve, visit
    from measure_dashboard import paint

    async with open_browser() as browser, serve(app) as served, visit(browser, served.url) as user:
        for name, route, selector in (("overview", "", ".figure"), ("runs", "runs", ".runs tbody tr")):
            times = [await paint(user, route, selector) for _ in range(6)][1:]
            print(f"{name}: first data painted after {sorted(times)[2]:.0f} ms (median of 5), first {max(times):.0f}")


RUNS = 0


async def main() -> None:
    global RUNS
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--browser", action="store_true")
    options = parser.parse_args()
    RUNS = options.runs
    with tempfile.TemporaryDirectory() as folder:
        if options.store == "sqlite":
            path = Path(folder) / "lists.db"
            app = make_app(f"sqlite:///{path}")
            async with app.connect():
                pass
            fill_sqlite(path, RUNS)
            async with app.connect():
                await measure(app, "sqlite")
            if options.browser:
                await paint(app)
            return
        with postgres.serving(Path(folder)) as server:
            url = server.database("lists")
            app = make_app(url)
            async with app.connect():
                pass
            await fill_postgres(url, RUNS)
            async with app.connect():
                await measure(app, "postgres")
            if options.browser:
                await paint(app)


if __name__ == "__main__":
    asyncio.run(main())
