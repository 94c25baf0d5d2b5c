"""Runs that were released before they began, because their permit had to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.core.model import TaskKind
from holdfast.runner import unbegun_runs
from holdfast.runner.unbegun_runs import UnbegunRuns
from holdfast.store.protocol import Claim, MailboxPage, SnapshotQuery, TaskRef
from holdfast.store.sqlite import SqliteStore


class _Run:
    started_at: int | None = None


def _claim(epoch: int, owner: str = "w1", started_at: int | None = None, run: int = 7) -> Claim:
    record: Any = _Run()
    record.started_at = started_at
    return Claim(TaskRef(run, 0, owner, epoch), TaskKind.RUN, False, record, MailboxPage((), complete=True, last=0))


def test_the_claim_that_follows_the_release_of_an_unbegun_run_is_new() -> None:
    runs = UnbegunRuns()
    assert runs.is_new(_claim(1))

    runs.add(TaskRef(7, 0, "w1", 1))

    assert runs.is_new(_claim(2))
    assert not runs.is_new(_claim(2))


@pytest.mark.parametrize(
    "claim", [_claim(3), _claim(2, "w2"), _claim(2, started_at=5), _claim(2, run=8)],
    ids=["another claim in between", "after a failover", "begun", "another run"],
)  # fmt: skip
def test_another_claim_reads_the_history(claim: Claim) -> None:
    runs = UnbegunRuns()
    runs.add(TaskRef(7, 0, "w1", 1))

    assert not runs.is_new(claim)


def test_the_oldest_runs_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unbegun_runs, "_MAX_RUNS", 2)
    runs = UnbegunRuns()
    for run in (1, 2, 3):
        runs.add(TaskRef(run, 0, "w1", 1))

    assert [runs.is_new(_claim(2, run=run)) for run in (1, 2, 3)] == [False, True, True]


async def test_a_run_that_has_waited_for_its_permit_begins_without_reading_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/flow.db")
    one, read = app.limit("one", concurrency=1), SqliteStore.read
    read_histories: list[int] = []

    async def counted(store: SqliteStore, query: Any) -> Any:
        if isinstance(query, SnapshotQuery):
            read_histories.append(query.run)
        return await read(store, query)

    @app.step
    async def work(n: int) -> int:
        return n

    @app.workflow(limits=[one])
    async def flow(ctx: Context, n: int) -> int:
        return await work(n)

    monkeypatch.setattr(SqliteStore, "read", counted)
    async with app:
        runs = [await app.start(flow, n) for n in range(8)]
        assert [await run.result() for run in runs] == list(range(8))

    assert read_histories == []
