"""``holdfast prune`` as a user runs it, and its effect on a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Context, Holdfast
from holdfast.store.sqlite import opening

from .running import holdfast

DAYS_91_MS = 91 * 24 * 60 * 60 * 1000


async def _filled(file: Path, runs: int) -> Holdfast:
    """A database with finished runs that ended 91 days ago, and one open run."""
    app = Holdfast(f"sqlite:///{file}")

    @app.workflow
    async def work(ctx: Context, text: str) -> str:
        return text

    async with app:
        for handle in [await app.start(work, "x" * 2000, id=f"r{n}") for n in range(runs)]:
            await handle.result("20 seconds")
        await app.start(work, "", id="open", start_delay="1 day")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "UPDATE holdfast_run SET completed_at = completed_at - ? WHERE completed_at IS NOT NULL", (DAYS_91_MS,)
        )
    return app


async def test_prune_counts_first_and_then_deletes_old_runs(tmp_path: Path) -> None:
    await _filled(tmp_path / "shop.db", 30)
    url = f"sqlite:///{tmp_path / 'shop.db'}"

    dry = holdfast("prune", url, "--older-than", "90d", "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout.splitlines()[-1] == (
        "30 runs ended more than 90 days ago and would be deleted (dry run: nothing was deleted)"
    )
    none = holdfast("prune", url, "--older-than", "90d", "--status", "errored")
    assert none.stdout.startswith("0 runs")
    done = holdfast("prune", url, "--older-than", "90d", "-w", "work")

    assert done.stdout.splitlines()[:2] == ["complete: 30", "30 runs that ended more than 90 days ago were deleted"]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("SELECT instance_id FROM holdfast_run").fetchall() == [("open",)]


async def test_prune_returns_free_pages_to_the_file_system(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    await _filled(file, 100)
    before = file.stat().st_size

    holdfast("prune", f"sqlite:///{file}", "--older-than", "90d")

    assert file.stat().st_size < before / 2


def test_prune_needs_an_age_and_an_existing_database(tmp_path: Path) -> None:
    assert holdfast("prune", "sqlite:///x.db", cwd=tmp_path).returncode == 2
    assert holdfast("prune", "sqlite:///x.db", "--older-than", "soon", cwd=tmp_path).returncode == 2
    missing = holdfast("prune", "sqlite:///x.db", "--older-than", "1d", cwd=tmp_path)
    assert missing.returncode == 1
    assert "does not exist" in missing.stderr


async def test_a_writer_never_waits_long_for_prune(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Measure how long another process would hold the write lock, while runs with many rows are deleted."""
    file = tmp_path / "shop.db"
    app = await _filled(file, 20)
    rows = 20_000 if request.config.getoption("--long") else 5_000
    with closing(sqlite3.connect(file)) as connection, connection:
        [(first, last)] = connection.execute("SELECT min(id), max(id) FROM holdfast_run WHERE instance_id <> 'open'")
        fact = "(run, state, key, n, kind, at, started_at, ok, attempts)"
        values = ((run, 0, f"k{n}", 0, "do", 1, 1, 1, 1) for run in (first, last) for n in range(rows))
        connection.executemany(f"INSERT INTO holdfast_fact {fact} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    store_durations = await _prune_and_measure(app, file)

    assert sorted(store_durations)[len(store_durations) * 9 // 10] < 0.05
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast_fact WHERE kind = 'do'").fetchone() == (0,)


async def _prune_and_measure(app: Holdfast, file: Path) -> list[float]:
    """Delete the runs with the worker's loop, and return the time of each of its transactions."""
    durations: list[float] = []
    began = 0.0

    def trace(statement: str) -> None:
        nonlocal began
        if statement.startswith("BEGIN IMMEDIATE"):
            began = time.perf_counter()
        elif statement.startswith("COMMIT"):
            durations.append(time.perf_counter() - began)

    original = opening.writer

    def traced(*arguments: Any) -> apsw.Connection:
        connection = original(*arguments)
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: trace(event["sql"]))
        return connection

    opening.writer = traced  # type: ignore[assignment]
    try:
        from holdfast import Retention

        app.registry.retention = Retention(complete="90 days")
        async with app:
            worker = app._opened().worker
            assert worker is not None
            assert await worker.prune() == 20
            while (await worker.prune()) or (durations and _leftovers(file)):
                pass
    finally:
        opening.writer = original  # type: ignore[assignment]
    return durations


def _leftovers(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT count(*) FROM holdfast_leftover").fetchone() != (0,)
