"""A replay on a new machine delivers what the first execution received, in the same order, and continues from there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from holdfast import Context, Limits, NonRetryableError, Retry
from holdfast.kernel.driver import Outcome
from holdfast.store.protocol import FactState

from .machine_bench import START, Bench


def _work() -> Any: ...


async def _in_order_of_arrival(ctx: Context) -> list[str]:
    seen: list[str] = []

    async def branch(name: str) -> None:
        await ctx.do(name, _work)
        seen.append(name)

    await asyncio.gather(branch("a"), branch("b"))
    return seen


@pytest.mark.promise("exact-replay", store=None)
def test_results_are_delivered_in_their_recorded_order_on_every_replay() -> None:
    bench = Bench(_in_order_of_arrival)
    bench.advance()
    bench.finish("b")
    bench.finish("a")
    assert bench.result == ["b", "a"]

    for _ in range(3):
        bench.replay()
        assert bench.result == ["b", "a"]


def test_results_that_arrive_together_keep_the_order_they_were_written_in() -> None:
    bench = Bench(_in_order_of_arrival)
    bench.advance()
    outcomes = []
    for key in ("b", "a"):
        data, live = bench.calls[key].record(None)
        outcomes.append(Outcome(key, 1, bench.now, bench.now, value=data, live=live))
    bench.advance(*outcomes)
    assert bench.result == ["b", "a"]

    bench.replay()
    assert bench.result == ["b", "a"]


def test_a_finished_step_is_not_called_again() -> None:
    bench = Bench(_in_order_of_arrival)
    bench.advance()
    bench.finish("b")

    bench.replay()
    assert list(bench.calls) == ["a"]


def test_a_replay_writes_nothing_that_is_written_already() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.do("a", _work)
        await ctx.sleep("nap", "1 hour")

    bench = Bench(flow)
    bench.advance()
    bench.finish("a")
    before = list(bench.facts)

    decision = bench.replay()
    assert decision.empty
    assert bench.facts == before


async def _independent(ctx: Context) -> list[Any]:
    """Three branches: one retries, one sleeps, one waits for an event."""
    seen: list[Any] = []

    async def retrying() -> None:
        seen.append(await ctx.do("flaky", _work, retry=Retry(5, "10s", "constant")))

    async def sleeping() -> None:
        for n in range(3):
            await ctx.sleep(f"nap {n}", "7s")
            seen.append(n)

    async def waiting() -> None:
        seen.append((await ctx.wait_for_event("go", type="go", timeout="25s")).payload)

    await asyncio.gather(retrying(), sleeping(), waiting())
    return seen


@pytest.mark.parametrize("replayed", [False, True], ids=["same machine", "replay"])
def test_branches_that_retry_sleep_and_wait_all_progress(replayed: bool) -> None:
    bench = Bench(_independent)
    wake_ups = []

    def wake() -> None:
        if replayed:
            bench.replay()
        assert bench.decision is not None
        wake_ups.append((bench.decision.wake_at or 0) - START)

    bench.advance()
    bench.fail("flaky", OSError("first"))
    wake()
    bench.sleep(7)
    wake()
    bench.sleep(3)
    bench.fail("flaky", OSError("second"))
    wake()
    bench.send("go", "gone")
    wake()
    bench.sleep(4)
    wake()
    bench.sleep(6)
    bench.finish("flaky", "worked")
    wake()
    bench.sleep(1)
    assert wake_ups == [7_000, 10_000, 14_000, 14_000, 20_000, 21_000]
    assert bench.result == [0, "gone", 1, "worked", 2]


def test_a_decision_has_the_earliest_wake_up_time_and_whether_it_is_a_retry() -> None:
    bench = Bench(_independent)
    decision = bench.advance()
    assert (decision.wake_at, decision.retrying, decision.topics) == (START + 7_000, False, frozenset({"go"}))

    bench.sleep(5)
    decision = bench.fail("flaky", OSError())
    assert (decision.wake_at, decision.retrying) == (START + 7_000, False)
    decision = bench.sleep(5)
    assert (decision.wake_at, decision.retrying) == (START + 14_000, False)
    decision = bench.sleep(4.5)
    assert (decision.wake_at, decision.retrying) == (START + 15_000, True)


def test_time_in_workflow_code_is_the_time_of_the_last_fact() -> None:
    async def flow(ctx: Context) -> list[float]:
        times = [ctx.now().timestamp()]
        await ctx.do("a", _work)
        times.append(ctx.now().timestamp())
        await ctx.sleep("nap", 60)
        times.append(ctx.now().timestamp())
        return times

    bench = Bench(flow)
    bench.advance()
    bench.now += 5_000
    bench.finish("a")
    bench.sleep(60)
    assert bench.result == [1000, 1005, 1065]

    bench.now += 10**9
    bench.replay()
    assert bench.result == [1000, 1005, 1065]


def test_a_step_cancelled_by_the_code_stays_cancelled_and_its_late_result_is_dropped() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await asyncio.wait_for(ctx.do("slow", _work), 5)
        except TimeoutError:
            return await ctx.do("plan b", _work)

    bench = Bench(flow)
    bench.advance()
    late = bench.calls["slow"]
    bench.sleep(5)
    assert bench.cancelled == ["slow"]
    bench.calls["slow"] = late
    bench.finish("slow", "too late")
    bench.replay()
    assert list(bench.calls) == ["plan b"]
    bench.finish("plan b", "b")
    assert bench.result == "b"
    assert not [f for f in bench.facts if f.key == "slow" and f.state == FactState.RESULT]


def test_the_late_result_of_an_earlier_attempt_is_dropped() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.do("a", _work, retry=Retry(1, "5s"))

    bench = Bench(flow)
    bench.advance()
    bench.fail("a", TimeoutError("took too long"))
    bench.sleep(5)
    assert bench.calls["a"].attempt == 2
    data, live = bench.calls["a"].record("of the first attempt")
    bench.advance(Outcome("a", 1, bench.now, bench.now, value=data, live=live))
    assert bench.end is None
    bench.finish("a", "of the second")
    assert bench.result == "of the second"


def test_steps_that_run_at_the_end_of_the_code_are_cancelled() -> None:
    async def flow(ctx: Context) -> str:
        forgotten = asyncio.create_task(ctx.do("forgotten", _work))
        await asyncio.sleep(1)
        return "done" if not forgotten.done() else "?"

    bench = Bench(flow)
    bench.advance()
    bench.sleep(1)
    assert bench.result == "done"
    assert bench.cancelled == ["forgotten"]


def test_a_wait_that_is_cancelled_leaves_its_event_to_the_next_wait() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await asyncio.wait_for(ctx.wait_for_event("first", type="go"), 5)
        except TimeoutError:
            return (await ctx.wait_for_event("second", type="go")).payload

    bench = Bench(flow)
    bench.advance()
    bench.sleep(5)
    bench.replay()
    bench.send("go", "here")
    assert bench.result == "here"
    assert [m.n for m in bench.consumed.values()] == [1]


def test_a_name_that_was_cancelled_can_be_waited_for_again() -> None:
    async def flow(ctx: Context) -> Any:
        for _ in range(3):
            try:
                event = await asyncio.wait_for(ctx.wait_for_event("go", type="go", timeout="1 hour"), 5)
            except TimeoutError:
                continue
            return event.payload
        return None

    bench = Bench(flow)
    bench.advance()
    bench.sleep(5)
    bench.replay()
    bench.sleep(5)
    bench.replay()
    bench.send("go", "third time")
    assert bench.result == "third time"


def test_attempts_that_were_running_when_a_worker_was_lost_are_counted() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.do("crashes", _work, retry=Retry(limit=2))

    bench = Bench(flow)
    bench.advance()
    assert bench.calls["crashes"].attempt == 1
    bench.replay(lost=True)
    assert bench.calls["crashes"].attempt == 2
    bench.replay()
    assert bench.calls["crashes"].attempt == 2, "a worker that released the run in order costs no attempt"
    bench.replay(lost=True)
    bench.replay(lost=True)
    assert bench.error.name == "StepMaxAttemptsExceeded"
    assert bench.calls == {}


def test_a_final_failure_is_the_same_live_and_on_replay() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.do("a", _work)
        except NonRetryableError as error:
            cause: Any = error.__cause__
            return [error.name, str(error), error.kind, error.details, cause.step, cause.attempts, cause.type]

    bench = Bench(flow)
    bench.advance()
    bench.fail("a", NonRetryableError("no", "Declined", kind="Payment", details={"code": 5}))
    live = bench.result
    bench.replay()
    assert bench.result == live == ["Declined", "no", "Payment", {"code": 5}, "a", 1, "Declined"]


def test_history_length_and_size_grow_alike_on_replay() -> None:
    async def flow(ctx: Context) -> Any:
        seen = []
        for n in range(3):
            await ctx.do(f"s{n}", _work)
            seen.append([ctx.info.history_length, ctx.info.history_size])
        return seen

    bench = Bench(flow)
    bench.advance()
    for n in range(3):
        bench.finish(f"s{n}", "x" * n)
    live = bench.result
    bench.replay()
    assert bench.result == live == [[1, 2], [2, 5], [3, 9]]


def test_a_thousand_recorded_steps_replay_in_milliseconds() -> None:
    async def flow(ctx: Context) -> int:
        return sum([await ctx.do(f"s{n}", _work) for n in range(1000)])

    bench = Bench(flow)
    bench.advance()
    for n in range(1000):
        bench.finish(f"s{n}", n)

    durations = []
    for _ in range(3):
        start = time.process_time()
        bench.replay()
        durations.append(time.process_time() - start)
    assert bench.result == sum(range(1000))
    assert min(durations) < 0.25


def test_code_that_never_waits_fails_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.workflow.loop.MAX_CALLBACKS", 1000)

    async def flow(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0)

    bench = Bench(flow)
    bench.advance()
    assert bench.error.name == "WorkflowStuckError"


def test_a_halted_machine_records_results_and_runs_no_more_code() -> None:
    ran: list[str] = []

    async def flow(ctx: Context) -> None:
        await ctx.do("a", _work)
        ran.append("after a")

    bench = Bench(flow)
    bench.advance()
    assert bench.machine is not None
    bench.machine.halt()
    decision = bench.finish("a", 1)
    assert ran == []
    assert decision.end is None
    assert [f.key for f in decision.observed.facts] == ["a"]

    bench.replay()
    assert ran == ["after a"]
    assert bench.result is None


def test_the_step_limit_counts_steps_and_not_sleeps_and_waits() -> None:
    async def flow(ctx: Context) -> None:
        for n in range(5):
            await ctx.sleep(f"nap {n}", 1)
            await asyncio.sleep(1)
        for n in range(4):
            await ctx.do(f"s{n}", _work)

    bench = Bench(flow, limits=Limits(steps=3))
    bench.advance()
    bench.sleep(100)
    for n in range(3):
        bench.finish(f"s{n}")
    assert bench.error.name == "MaxStepsExceededError"
    assert "3 steps" in bench.error.message


def test_a_cancelled_wait_no_longer_wakes_the_run() -> None:
    async def wait_for_one(ctx: Context) -> None:
        abandoned = asyncio.create_task(ctx.wait_for_event("abandoned", type="y", timeout="1 day"))
        await ctx.sleep("pause", 1)
        abandoned.cancel()
        await ctx.wait_for_event("awaited", type="x", timeout="1 day")

    bench = Bench(wait_for_one)

    assert bench.advance().topics == {"y"}
    assert bench.sleep(1).topics == {"x"}
    assert bench.replay().topics == {"x"}
