"""Predictions: an event to a run that is suspended in the sender's process is written together with its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import Context, Holdfast, RunFailedError, StoreUnavailableError, WorkerConfig
from holdfast.core.model import Status
from holdfast.runner.cache import SuspendedRun
from holdfast.store.protocol import (
    MAX_CLOCK_SKEW_MS,
    Commit,
    Committed,
    NewEvent,
    NewRun,
    RunRecord,
    Sent,
    SnapshotQuery,
)


def run_record(**fields: Any) -> RunRecord:
    waiting = {"status": Status.WAITING, "started_at": 0, "run_at": None}
    return replace(NewRun("w", "a").record(1, 0, 1, 0), **(waiting | fields))


class Spy:
    """Records the calls of an app's store and the results of predictions."""

    def __init__(self, app: Holdfast) -> None:
        opened = app._lifetime.opened
        assert opened is not None
        self._store: Any = opened.client._store
        self._send, self._commit, self._read = self._store.send, self._store.commit, self._store.read
        self._store.send, self._store.commit, self._store.read = self.send, self.commit, self.read
        self.before_send: list[Any] = []
        """Awaitables; each call of ``send`` awaits one first."""
        self.replies: asyncio.Event | None = None
        """Calls of ``send`` return when this event is set."""
        self.sent: list[Sent] = []
        self.commits: list[Commit] = []
        self.loads = 0

    async def send(self, events: Sequence[NewEvent], **options: Any) -> list[Sent]:
        if self.before_send:
            await self.before_send.pop(0)
        sent: list[Sent] = await self._send(events, **options)
        self.sent += sent
        if self.replies is not None:
            await self.replies.wait()
        return sent

    async def has_sent(self) -> bool:
        return bool(self.sent)

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        self.commits += commits
        committed: list[Committed] = await self._commit(commits)
        return committed

    async def read(self, query: Any) -> Any:
        self.loads += isinstance(query, SnapshotQuery)
        return await self._read(query)

    @property
    def written_with_turn(self) -> list[bool]:
        """For each sent event: True if it was written together with its predicted turn."""
        return [sent.committed is not None for sent in self.sent]


@pytest.fixture
async def app(make_app: MakeApp) -> AsyncIterator[Holdfast]:
    app = make_app(worker=WorkerConfig(poll="1 hour"))  # notifications wake the worker
    calls: list[Any] = []

    @app.step
    async def note(value: Any) -> Any:
        calls.append(value)
        return value

    @app.workflow
    async def one(ctx: Context) -> Any:
        event = await ctx.wait_for_event("go", type="go", timeout="1 hour")
        return [event.payload, event.timestamp.isoformat()]

    @app.workflow
    async def then_a_step(ctx: Context) -> Any:
        event = await ctx.wait_for_event("go", type="go", timeout="1 hour")
        return await note(event.payload)

    @app.workflow
    async def three(ctx: Context) -> Any:
        return [(await ctx.wait_for_event(f"go {n}", type="go")).payload for n in range(3)]

    @app.workflow
    async def fails(ctx: Context) -> Any:
        event = await ctx.wait_for_event("go", type="go")
        raise ValueError(event.payload)

    app.calls = calls  # type: ignore[attr-defined]
    async with app:
        yield app


async def suspended_run(app: Holdfast, workflow: str) -> Any:
    """Start a run and wait until it is suspended and its worker is idle."""
    run = await app.start(workflow)
    await until_quiet(app, run)
    return run


async def until_quiet(app: Holdfast, run: Any) -> None:
    worker = app._lifetime.opened.worker  # type: ignore[union-attr]
    assert worker is not None

    async def quiet() -> bool:
        cached = worker._cache.find(run.workflow, run.id) is not None
        return cached and not worker._slots.reserved and not worker._context.committer.busy

    await until(quiet)


async def test_a_claim_in_progress_does_not_prevent_a_prediction(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await suspended_run(app, "one")
    spy = Spy(app)
    worker = app._opened().worker
    assert worker is not None
    claim, release = spy._store.claim, asyncio.Event()

    async def slow(request: Any) -> Any:
        await release.wait()
        return await claim(request)

    monkeypatch.setattr(spy._store, "claim", slow)
    claiming = asyncio.create_task(worker.claim_due(10))
    await asyncio.sleep(0)

    await run.send_event("go", 7)

    assert spy.written_with_turn == [True]
    release.set()
    assert await claiming == 0


async def test_an_event_and_the_end_that_it_causes_are_written_together(app: Holdfast) -> None:
    run = await suspended_run(app, "one")
    spy = Spy(app)

    await run.send_event("go", 7)

    payload, seen = await run.result(timeout=60)
    assert (spy.written_with_turn, spy.commits) == ([True], [])
    [event] = (await run.history()).events
    assert payload == 7
    assert (event.created_at.isoformat(), event.consumed_by_step_key) == (seen, "go")


async def test_a_step_of_a_predicted_turn_is_called_only_after_the_write(app: Holdfast) -> None:
    calls = app.calls  # type: ignore[attr-defined]
    run = await suspended_run(app, "then_a_step")
    spy = Spy(app)
    sending, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        sending.set()
        await go_on.wait()

    spy.before_send = [hold()]
    sent = asyncio.ensure_future(run.send_event("go", 7))
    await sending.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert calls == []
    go_on.set()

    await sent
    assert await run.result(timeout=60) == 7
    assert (calls, spy.written_with_turn, len(spy.commits)) == ([7], [True], 1)


async def test_a_run_suspends_again_after_a_predicted_turn_and_continues_from_memory(app: Holdfast) -> None:
    run = await suspended_run(app, "three")
    spy = Spy(app)

    await run.send_event("go", 0)
    await until_quiet(app, run)
    await run.send_event("go", 1)
    await until_quiet(app, run)
    await run.send_event("go", 2)

    assert await run.result(timeout=60) == [0, 1, 2]
    assert (len(spy.sent), spy.loads) == (3, 0)


async def test_concurrently_sent_events_all_arrive_in_the_order_of_their_writes(app: Holdfast) -> None:
    run = await suspended_run(app, "three")

    await asyncio.gather(*(run.send_event("go", n) for n in range(3)))

    assert sorted(await run.result(timeout=60)) == [0, 1, 2]
    assert [event.payload for event in (await run.history()).events] == await run.result()


@pytest.mark.promise("exact-replay")
async def test_a_prediction_that_another_process_overtakes_is_discarded(app: Holdfast, make_app: MakeApp) -> None:
    """The run continues from what is written; nothing of the failed prediction shows."""
    run = await suspended_run(app, "three")
    spy = Spy(app)
    other = make_app()
    async with other.connect():
        opened = other._lifetime.opened
        assert opened is not None
        spy.before_send = [opened.client.events.send("three", run.id, "go", "other")]
        await run.send_event("go", "mine")
    await run.send_event("go", "last")

    assert await run.result(timeout=60) == ["other", "mine", "last"]
    assert not spy.written_with_turn[0]


async def test_a_send_that_the_store_refuses_leaves_the_run_waiting(app: Holdfast) -> None:
    run = await suspended_run(app, "one")
    spy = Spy(app)

    async def away() -> None:
        raise StoreUnavailableError("away")

    spy.before_send = [away()]
    with pytest.raises(StoreUnavailableError):
        await run.send_event("go", 7)
    assert (await run.status()).status == "waiting"

    await run.send_event("go", 8)

    assert (await run.result(timeout=60))[0] == 8


@pytest.mark.parametrize("workflow", ["one", "then_a_step", "three"])
async def test_a_send_cancelled_after_its_write_still_takes_effect(app: Holdfast, workflow: str) -> None:
    """A run that was claimed for the prediction is released long before its lease expires."""
    run = await suspended_run(app, workflow)
    spy = Spy(app)
    spy.replies = asyncio.Event()
    sending = asyncio.ensure_future(run.send_event("go", 7))
    await until(spy.has_sent)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    spy.replies = None

    if workflow == "three":
        for n in (8, 9):
            await run.send_event("go", n)
    result = await run.result(timeout=60)
    if workflow != "one":
        assert result == {"then_a_step": 7, "three": [7, 8, 9]}[workflow]
    assert (await run.history()).events[0].payload == 7


async def test_a_send_cancelled_before_its_write_has_no_effect(app: Holdfast) -> None:
    run = await suspended_run(app, "one")
    spy = Spy(app)
    sending = asyncio.Event()

    async def hold() -> None:
        sending.set()
        await asyncio.Event().wait()

    spy.before_send = [hold()]
    sent = asyncio.ensure_future(run.send_event("go", 7))
    await sending.wait()
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent

    assert (await run.history()).events == []
    await run.send_event("go", 8)
    assert (await run.result(timeout=60))[0] == 8


async def test_a_failure_in_a_predicted_turn_fails_the_run(app: Holdfast) -> None:
    run = await suspended_run(app, "fails")
    spy = Spy(app)

    await run.send_event("go", "no")

    with pytest.raises(RunFailedError, match="no"):
        await run.result(timeout=60)
    assert spy.written_with_turn == [True]


async def test_a_repeated_event_id_in_a_predicted_send_is_a_duplicate(app: Holdfast) -> None:
    run = await suspended_run(app, "three")
    spy = Spy(app)

    for n in (1, 2):
        await run.send_event("go", n, id="k")
        await until_status(run, "waiting")

    assert spy.sent[1].duplicate
    await run.send_event("go", 3)
    await run.send_event("go", 4)
    assert await run.result(timeout=60) == [1, 3, 4]


async def test_without_a_cache_nothing_is_predicted(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(cache=0))

    @app.workflow
    async def one(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    async with app:
        run = await app.start(one)
        await until_status(run, "waiting")
        spy = Spy(app)
        await run.send_event("go", 7)
        assert await run.result(timeout=60) == 7
        assert spy.written_with_turn == [False]


NOW = 1_000_000
GO = NewEvent("w", "a", "go")


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("changes", "event", "ready"),
    [
        ({}, GO, True),
        ({"topics": frozenset({"*"})}, GO, True),
        ({"topics": frozenset({"other"})}, GO, False),
        ({"seen": None}, GO, False),
        ({"due_at": NOW + MAX_CLOCK_SKEW_MS}, GO, False),
        ({"due_at": NOW + MAX_CLOCK_SKEW_MS + 1}, GO, True),
        ({"run": run_record(expires_at=NOW + MAX_CLOCK_SKEW_MS)}, GO, False),
        ({}, NewEvent("w", "a", "go", ask="k"), False),
    ],
    ids=["ready", "any topic", "other topic", "unread events", "due soon", "due later", "expires soon", "ask"],
)
def test_a_turn_is_predicted_only_if_nothing_can_come_before_the_event(
    changes: dict[str, Any], event: NewEvent, ready: bool
) -> None:
    """An ask and a run with unread events are not predicted either."""
    machine: Any = None
    suspended = SuspendedRun(run_record(), 1, machine, frozenset({"go"}), None, 0)

    assert replace(suspended, **changes).is_ready_for(event, NOW) is ready
