"""Property test: every replay of a random program, at every point, observes what the first execution observed.

A program is a tree of sequences, parallel branches, races, steps, sleeps and waits. It is run live under a random
schedule of observations. Then, at each cut of the recorded facts, a new machine replays it. The new machine must have
observed exactly what the first one had by then, wait for the same things, and end in the same way after the remaining
observations.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Context, Retry, WaitForEventTimeoutError
from holdfast.store.protocol import Fact

from .machine_bench import OPEN_BENCHES, Bench

Tree = tuple[Any, ...]
MAX_OBSERVATIONS = 60

_leaves = st.one_of(
    st.just(("step",)),
    st.just(("flaky",)),
    st.just(("broken",)),
    st.tuples(st.just("sleep"), st.integers(1, 9)),
    st.tuples(st.just("timer"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from(["x", "y"]), st.integers(1, 9)),
)
_trees = st.recursive(
    _leaves,
    lambda below: st.tuples(
        st.sampled_from(["sequence", "gather", "group", "race", "as_completed", "bounded"]),
        st.lists(below, min_size=1, max_size=3),
    ),
    max_leaves=7,
)


def _work() -> Any: ...


class Program:
    """The workflow function of a tree. ``trace`` records what its latest execution has observed."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.trace: list[Any] = []

    async def __call__(self, ctx: Context) -> list[Any]:
        self.trace = trace = []
        await self._run(ctx, self.tree, "r", trace)
        return trace

    async def _run(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> str:
        seen = await getattr(self, f"_{tree[0]}")(ctx, tree, path, trace)
        trace.append([path, seen, ctx.now().timestamp(), ctx.random.random(), ctx.info.history_length])
        return path

    async def _step(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        return await ctx.do(path, _work)

    async def _flaky(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        return await ctx.do(path, _work, retry=Retry(3, "2s", "linear"))

    async def _broken(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        try:
            return await ctx.do(path, _work, retry=Retry(1, "3s"))
        except OSError as error:
            return f"failed: {error}"

    async def _sleep(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        await ctx.sleep(path, tree[1])

    async def _timer(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        await asyncio.sleep(tree[1])

    async def _wait(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        try:
            return (await ctx.wait_for_event(path, type=tree[1], timeout=tree[2])).payload
        except WaitForEventTimeoutError:
            return "timeout"

    def _branches(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> list[Any]:
        return [self._run(ctx, below, f"{path}.{n}", trace) for n, below in enumerate(tree[1])]

    async def _sequence(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        return [await self._run(ctx, below, f"{path}.{n}", trace) for n, below in enumerate(tree[1])]

    async def _gather(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        return await asyncio.gather(*self._branches(ctx, tree, path, trace))

    async def _group(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch) for branch in self._branches(ctx, tree, path, trace)]
        return [task.result() for task in tasks]

    async def _as_completed(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        return [await done for done in asyncio.as_completed(self._branches(ctx, tree, path, trace))]

    async def _bounded(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        try:
            async with asyncio.timeout(4):
                return await self._gather(ctx, tree, path, trace)
        except TimeoutError:
            return "out of time"

    async def _race(self, ctx: Context, tree: Tree, path: str, trace: list[Any]) -> Any:
        tasks = [asyncio.create_task(branch) for branch in self._branches(ctx, tree, path, trace)]
        done, losers = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in losers:
            task.cancel()
        await asyncio.gather(*losers, return_exceptions=True)
        return [task.result() for task in done]


@dataclass(frozen=True)
class Observation:
    """Something that becomes known: the outcome of a step, an event, or the time at which something is due."""

    subject: str
    ok: bool = True


@dataclass(frozen=True)
class RunView:
    """The observable state of a run at one point."""

    trace: str
    calls: tuple[tuple[str, int], ...]
    wake_at: int | None
    topics: frozenset[str]
    ended: str

    @classmethod
    def of(cls, bench: Bench, program: Program) -> RunView:
        assert bench.decision is not None
        if bench.end is not None:
            return cls(repr(program.trace), (), None, frozenset(), repr(bench.end))
        calls = tuple(sorted((key, call.attempt) for key, call in bench.calls.items()))
        return cls(repr(program.trace), calls, bench.decision.wake_at, bench.decision.topics, "")


def _choose(bench: Bench, choice: int) -> Observation:
    assert bench.decision is not None
    options = [Observation(key, ok) for key in sorted(bench.calls) for ok in (True, False)]
    options += [Observation(f"event {topic}") for topic in sorted(bench.decision.topics)]
    if bench.decision.wake_at is not None:
        options.append(Observation("time"))
    return options[choice % len(options)]


def _apply(bench: Bench, observation: Observation) -> None:
    if observation.subject == "time":
        assert bench.decision is not None
        assert bench.decision.wake_at is not None
        bench.now = max(bench.now, bench.decision.wake_at)
        bench.advance()
        return
    bench.now += 700
    if observation.subject.startswith("event "):
        bench.send(observation.subject.removeprefix("event "), f"sent at {bench.now}")
    elif observation.ok:
        bench.finish(observation.subject, f"ended at {bench.now}")
    else:
        bench.fail(observation.subject, OSError(f"broke at {bench.now}"))


def _facts(bench: Bench) -> list[Fact]:
    """The recorded facts without start times: a new machine starts running attempts again, at another time."""
    return [fact._replace(started_at=0) for fact in bench.facts]


@pytest.mark.promise("exact-replay", store=None)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_trees, st.lists(st.integers(0, 1000), min_size=MAX_OBSERVATIONS, max_size=MAX_OBSERVATIONS))
def test_every_cold_replay_observes_what_the_first_execution_observed(tree: Tree, choices: list[int]) -> None:
    program = Program(tree)
    live = Bench(program.__call__)
    live.advance()
    observations: list[Observation] = []
    points = [(live.fork(), RunView.of(live, program))]
    while live.end is None and len(observations) < MAX_OBSERVATIONS:
        observations.append(_choose(live, choices[len(observations)]))
        _apply(live, observations[-1])
        points.append((live.fork(), RunView.of(live, program)))

    for cut, (recorded, _) in enumerate(points):
        recorded.replay()
        for n, (_, expected) in enumerate(points[cut:], start=cut):
            assert RunView.of(recorded, program) == expected, f"replayed at {cut}, compared at {n}"
            if n < len(observations):
                _apply(recorded, observations[n])
        assert _facts(recorded) == _facts(live)
    while OPEN_BENCHES:
        OPEN_BENCHES.pop().close()
