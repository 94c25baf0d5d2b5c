"""An event to a run that rests in the sender's own process: the code runs first, and both are written together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Context, Holdfast, RunFailedError, StoreUnavailableError, WorkerConfig
from holdfast.core.model import Status
from holdfast.runner.cache import Rested
from holdfast.store.protocol import ABOUT_NOW_MS, Commit, Committed, NewEvent, RunRecord, Sent

from .conftest import MakeApp
from .driving import until, until_status


def run_record(**fields: Any) -> RunRecord:
    return RunRecord(1, "w", "a", 0, "workflow", Status.WAITING, *[None] * 3, "default", 0, 0, 0, 0, None, 1, **fields)


class Spy:
    """What an app's store is asked for, and what came of foresight."""

    def __init__(self, app: Holdfast) -> None:
        opened = app._open
        assert opened is not None
        self._store: Any = opened.client._store
        self._send, self._commit, self._load = self._store.send, self._store.commit, self._store.load
        self._store.send, self._store.commit, self._store.load = self.send, self.commit, self.load
        self.before_send: list[Any] = []
        """Awaited, one for each call."""
        self.answers: asyncio.Event | None = None
        """When it is set, calls of send return."""
        self.sent: list[Sent] = []
        self.commits: list[Commit] = []
        self.loads = 0

    async def send(self, events: Sequence[NewEvent], **options: Any) -> list[Sent]:
        if self.before_send:
            await self.before_send.pop(0)
        sent: list[Sent] = await self._send(events, **options)
        self.sent += sent
        if self.answers is not None:
            await self.answers.wait()
        return sent

    async def has_sent(self) -> bool:
        return bool(self.sent)

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        self.commits += commits
        committed: list[Committed] = await self._commit(commits)
        return committed

    async def load(self, run: int) -> Any:
        self.loads += 1
        return await self._load(run)

    @property
    def together(self) -> list[bool]:
        """Of each event, whether its turn was written with it."""
        return [one.committed is not None for one in self.sent]


@pytest.fixture
async def app(make_app: MakeApp) -> AsyncIterator[Holdfast]:
    app = make_app(worker=WorkerConfig(poll=60))  # it looks for work when there is some
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


async def at_rest(app: Holdfast, workflow: str) -> Any:
    """A run that waits, in a worker that does nothing else."""
    run = await app.start(workflow)
    await until_quiet(app, run)
    return run


async def until_quiet(app: Holdfast, run: Any) -> None:
    worker = app._open.worker  # type: ignore[union-attr]
    assert worker is not None

    async def quiet() -> bool:
        rests = worker._cache.find(run.workflow, run.id) is not None
        return rests and not worker._reserved and not worker._tools.committer.busy

    await until(quiet)


async def test_a_claim_on_its_way_does_not_matter(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await at_rest(app, "one")
    spy = Spy(app)
    worker = app._opened().worker
    assert worker is not None
    claim, goes_on = spy._store.claim, asyncio.Event()

    async def slow(request: Any) -> Any:
        await goes_on.wait()
        return await claim(request)

    monkeypatch.setattr(spy._store, "claim", slow)
    claiming = asyncio.create_task(worker.claim_due(10))
    await asyncio.sleep(0)

    await run.send_event("go", 7)

    assert spy.together == [True]
    goes_on.set()
    assert await claiming == 0


async def test_event_and_end_are_one_write(app: Holdfast) -> None:
    run = await at_rest(app, "one")
    spy = Spy(app)

    await run.send_event("go", 7)

    payload, seen = await run.result(timeout=5)
    assert (spy.together, spy.commits) == ([True], [])
    [event] = (await run.history()).events
    assert payload == 7
    assert (event.created_at.isoformat(), event.consumed_by_step_key) == (seen, "go")


async def test_a_step_is_called_when_that_is_written_and_not_before(app: Holdfast) -> None:
    calls = app.calls  # type: ignore[attr-defined]
    run = await at_rest(app, "then_a_step")
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
    assert await run.result(timeout=5) == 7
    assert (calls, spy.together, len(spy.commits)) == ([7], [True], 1)


async def test_it_rests_again_and_goes_on_from_there(app: Holdfast) -> None:
    run = await at_rest(app, "three")
    spy = Spy(app)

    await run.send_event("go", 0)
    await until_quiet(app, run)
    await run.send_event("go", 1)
    await until_quiet(app, run)
    await run.send_event("go", 2)

    assert await run.result(timeout=5) == [0, 1, 2]
    assert (len(spy.sent), spy.loads) == (3, 0)


async def test_events_sent_at_once_all_arrive_in_their_order(app: Holdfast) -> None:
    run = await at_rest(app, "three")

    await asyncio.gather(*(run.send_event("go", n) for n in range(3)))

    assert sorted(await run.result(timeout=5)) == [0, 1, 2]
    assert [event.payload for event in (await run.history()).events] == await run.result()


async def test_another_process_was_quicker(app: Holdfast, make_app: MakeApp) -> None:
    """What was foreseen is not so, and nothing of it is seen: the run goes on from what is written."""
    run = await at_rest(app, "three")
    spy = Spy(app)
    other = make_app()
    async with other.connect():
        opened = other._open
        assert opened is not None
        spy.before_send = [opened.client._send(opened.client._requests.new_event("three", run.id, "go", "other"))]
        await run.send_event("go", "mine")
    await run.send_event("go", "last")

    assert await run.result(timeout=5) == ["other", "mine", "last"]
    assert not spy.together[0]


async def test_the_store_was_away(app: Holdfast) -> None:
    run = await at_rest(app, "one")
    spy = Spy(app)

    async def away() -> None:
        raise StoreUnavailableError("away")

    spy.before_send = [away()]
    with pytest.raises(StoreUnavailableError):
        await run.send_event("go", 7)
    assert (await run.status()).status == "waiting"

    await run.send_event("go", 8)

    assert (await run.result(timeout=5))[0] == 8


@pytest.mark.parametrize("workflow", ["one", "then_a_step", "three"])
async def test_who_stops_waiting_for_the_answer_has_sent_it_all_the_same(app: Holdfast, workflow: str) -> None:
    """And if the run was claimed for that, it is free again long before the lease has run out."""
    run = await at_rest(app, workflow)
    spy = Spy(app)
    spy.answers = asyncio.Event()
    sending = asyncio.ensure_future(run.send_event("go", 7))
    await until(spy.has_sent)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    spy.answers = None

    if workflow == "three":
        for n in (8, 9):
            await run.send_event("go", n)
    result = await run.result(timeout=5)
    if workflow != "one":
        assert result == {"then_a_step": 7, "three": [7, 8, 9]}[workflow]
    assert (await run.history()).events[0].payload == 7


async def test_who_stops_waiting_before_it_was_sent_has_not_sent_it(app: Holdfast) -> None:
    run = await at_rest(app, "one")
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
    assert (await run.result(timeout=5))[0] == 8


async def test_code_that_fails_then_has_failed(app: Holdfast) -> None:
    run = await at_rest(app, "fails")
    spy = Spy(app)

    await run.send_event("go", "no")

    with pytest.raises(RunFailedError, match="no"):
        await run.result(timeout=5)
    assert spy.together == [True]


async def test_the_same_event_twice(app: Holdfast) -> None:
    run = await at_rest(app, "three")
    spy = Spy(app)

    for n in (1, 2):
        await run.send_event("go", n, id="k")
        await until_status(run, "waiting")

    assert spy.sent[1].duplicate
    await run.send_event("go", 3)
    await run.send_event("go", 4)
    assert await run.result(timeout=5) == [1, 3, 4]


async def test_without_a_cache_there_is_nothing_to_foresee_with(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(cache=0))

    @app.workflow
    async def one(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    async with app:
        run = await app.start(one)
        await until_status(run, "waiting")
        spy = Spy(app)
        await run.send_event("go", 7)
        assert await run.result(timeout=5) == 7
        assert spy.together == [False]


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
        ({"due_at": NOW + ABOUT_NOW_MS}, GO, False),
        ({"due_at": NOW + ABOUT_NOW_MS + 1}, GO, True),
        ({"run": run_record(expires_at=NOW + ABOUT_NOW_MS)}, GO, False),
        ({}, NewEvent("w", "a", "go", ask="k"), False),
    ],
    ids=["ready", "for all", "for another", "unread mail", "due soon", "due later", "ends soon", "a question"],
)
def test_what_is_foreseen(changes: dict[str, Any], event: NewEvent, ready: bool) -> None:
    """Where something else may come before the event, or more is to be known, nothing is."""
    machine: Any = None
    rested = Rested(run_record(), 1, machine, frozenset({"go"}), None, 0)

    assert replace(rested, **changes).is_ready_for(event, NOW) is ready
