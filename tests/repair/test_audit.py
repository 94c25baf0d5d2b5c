"""Audit records of actions on runs, and the origin of a run in its history."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import InstanceTerminalError, StateError
from repair.conftest import Open
from repair.test_retry import ONCE, Calls


def _app(calls: Calls) -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> object:
        await ctx.do("a", calls.call, "a", retry=ONCE)
        return (await ctx.wait_for_event("go", type="go")).payload

    return app


async def test_the_history_of_a_retried_run_names_the_actor_of_the_retry(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"a"}
    app = _app(calls)

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        await h.run_until_idle()
        with app.acting_as("ann"):
            await run.retry(reason="the bank is open")

        origin = (await run.history()).origin
        assert origin is not None
        assert (origin.action, origin.pid, origin.run_number) == ("retry", "flow/r", 0)
        assert (origin.actor, origin.reason) == ("ann", "the bank is open")
        assert (await run.history(0)).origin is None


async def test_the_event_of_an_actor_has_a_record_and_is_delivered_once(opened: Open) -> None:
    app = _app(Calls())

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        await h.run_until_idle()
        with app.acting_as("ann"):
            await run.send_event("go", {"n": 1}, id="e")
            await run.send_event("go", {"n": 1}, id="e")
        await h.run_until_idle()
        assert await run.result(timeout=60) == {"n": 1}
        with app.acting_as("ann"), pytest.raises(InstanceTerminalError):
            await run.send_event("go", {"n": 2})

        records = [(r.action, r.actor, r.target, r.outcome) for r in (await app.audit(run)).items]
        assert records == [("send_event", "ann", "flow/r", outcome) for outcome in ("refused", "duplicate", "done")]


async def test_an_event_without_an_actor_has_no_record(opened: Open) -> None:
    app = _app(Calls())

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        await run.send_event("go", 1)

        assert (await app.audit(run)).items == []


async def test_an_event_with_an_actor_and_a_reason_has_one_record(opened: Open) -> None:
    app = _app(Calls())

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        with app.acting_as("ann"):
            await app._opened().client.events.send("flow", "r", "go", 1, reason="decided by phone")

        [record] = (await app.audit(run)).items
        assert (record.action, record.actor, record.reason) == ("send_event", "ann", "decided by phone")


async def test_a_repair_that_the_state_of_the_run_does_not_allow_has_a_record(opened: Open) -> None:
    app = _app(Calls())

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        await h.run_until_idle()
        with app.acting_as("ann"):
            for request in (run.retry(), run.fork(before="none"), run.resolve("a", result=1)):
                with pytest.raises(StateError):
                    await request
            await run.terminate()
            with pytest.raises(StateError):
                await run.resolve("a", result=1, reason="again")

        records = [(r.action, r.outcome, r.reason) for r in (await app.audit(run)).items if r.actor == "ann"]
        assert records[::-1] == [
            ("retry", "refused", None),
            ("fork", "refused", None),
            ("resolve", "refused", None),
            ("terminate", "done", None),
            ("resolve", "refused", "again"),
        ]
