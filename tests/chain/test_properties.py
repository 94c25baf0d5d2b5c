"""Random chains with random inputs, compared with a short model of the specification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import ChainTask, Completed, Dead, Holdfast, Outbound, RetryStep, Waiting
from holdfast.core.model import Status
from holdfast.store.protocol import Finish
from holdfast.testing import Harness

from .manual_run import ManualRun, program

TYPES = ("x", "y")
TIMEOUT = 5000


@dataclass
class Model:
    """A model of the specification: one current step and its state."""

    steps: int
    max_attempts: int
    current: int = 0
    state: str = "RUNNING"
    attempts: list[int] = field(default_factory=list)
    kind: str = "RUN"
    wait: tuple[str, int] = ("", 0)
    due: int = 0
    now: int = 0
    events: list[tuple[str, int]] = field(default_factory=list)
    """Type and time of unconsumed events."""
    outbound: int = 0

    def __post_init__(self) -> None:
        self.attempts = [0] * self.steps

    # --- answers of the handler

    def complete(self, outbound: int) -> None:
        self.outbound += outbound
        self.current += 1
        self.kind, self.state = "RUN", "RUNNING"
        if self.current == self.steps:
            self.state = "COMPLETED"

    def begin_wait(self, event_type: str, ms: int, outbound: int) -> None:
        self.outbound += outbound
        self.wait, self.state = (event_type, self.now + ms), "WAITING"
        self.update(wait_began=True)

    def fail(self, backoff: int) -> None:
        self.attempts[self.current] += 1
        if self.attempts[self.current] >= self.max_attempts:
            self.state = "FAILED"
        else:
            self.state, self.due = "READY", self.now + backoff
            self.update()

    def die(self, outbound: int) -> None:
        self.outbound += outbound
        self.attempts[self.current] += 1
        self.state = "FAILED"

    # --- events and time

    def update(self, *, wait_began: bool = False) -> None:
        if self.state == "READY" and self.due <= self.now:
            self.state = "RUNNING"
        if self.state != "WAITING":
            return
        event_type, deadline = self.wait
        index = next((n for n, (type_, _) in enumerate(self.events) if type_ == event_type), None)
        if index is not None and self.events[index][1] <= deadline:
            del self.events[index]
            self.kind, self.state = "EVENT", "RUNNING"
        elif not wait_began and (index is not None or deadline <= self.now):
            self.kind, self.state = "WAITING_TIMEOUT", "RUNNING"

    def states(self) -> list[str]:
        if self.state == "COMPLETED":
            return ["DONE"] * self.steps
        current = {"FAILED": "DEAD"}.get(self.state, self.state)
        return ["DONE"] * self.current + [current] + ["PENDING"] * (self.steps - self.current - 1)


outbound_counts = st.integers(0, 2)
durations = st.integers(0, 8).map(lambda n: n * 1000)
inputs = st.one_of(
    st.tuples(st.just("complete"), outbound_counts),
    st.tuples(st.just("wait"), st.sampled_from(TYPES), durations, outbound_counts),
    st.tuples(st.just("retry"), durations),
    st.tuples(st.just("raise")),
    st.tuples(st.just("die"), outbound_counts),
    st.tuples(st.just("time out")),
    st.tuples(st.just("lose worker")),
    st.tuples(st.just("event"), st.sampled_from(TYPES)),
    st.tuples(st.just("time"), durations),
    st.tuples(st.just("reopen")),
)
ANSWERS = ("complete", "wait", "retry", "raise", "die", "time out")


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(inputs, max_size=25))
def test_a_chain_behaves_as_the_model(steps: int, max_attempts: int, script: list[tuple[Any, ...]]) -> None:
    run = ManualRun(program(*(f"S{n}" for n in range(steps)), max_attempts=max_attempts, timeout_ms=TIMEOUT))
    model = Model(steps, max_attempts)
    run.advance()
    for input_name, *args in script:
        if input_name in ANSWERS and model.state != "RUNNING":
            continue
        apply(run, model, input_name, args)
        check(run, model)
        if model.state in ("COMPLETED", "FAILED"):
            return


def apply(run: ManualRun, model: Model, input_name: str, args: list[Any]) -> None:
    match input_name, args:
        case "complete", [outbound]:
            run.answer(Completed(model.current, outbound_events(outbound)))
            model.complete(outbound)
        case "wait", [event_type, ms, outbound]:
            run.answer(Waiting(event_type, ms / 1000, outbound_events(outbound)))
            model.begin_wait(event_type, ms, outbound)
        case "retry", [ms]:
            run.answer(RetryStep(ms / 1000, "again"))
            model.fail(ms)
        case "raise", []:
            run.answer(ValueError("no"))
            model.fail(1000 * 2 ** model.attempts[model.current])
        case "die", [outbound]:
            run.answer(Dead("no", outbound_events(outbound)))
            model.die(outbound)
        case "time out", []:
            run.time_out()
            model.now += TIMEOUT
            model.fail(1000 * 2 ** model.attempts[model.current])
        case "lose worker", []:
            run.advance(lost=True)
            if model.state == "RUNNING":
                model.fail(0)
            model.update()
        case "event", [event_type]:
            run.send(event_type)
            model.events.append((event_type, model.now))
            run.advance()
            model.update()
        case "time", [ms]:
            run.wait_ms(ms)
            model.now += ms
            model.update()
        case _:
            run.reopen()
            run.advance()
            model.update()


def outbound_events(count: int) -> list[Outbound]:
    return [Outbound("sent", n) for n in range(count)]


def check(run: ManualRun, model: Model) -> None:
    assert run.now == model.now
    assert run.states == model.states()
    assert [step.attempts for step in run.steps()] == model.attempts
    assert len(run.outbox) == model.outbound
    assert len(run.events) - len(run.consumed) == len(model.events)
    ended = run.end.status if isinstance(run.end, Finish) else None
    assert ended == {"COMPLETED": Status.COMPLETE, "FAILED": Status.ERRORED}.get(model.state)
    if model.state == "RUNNING":
        assert (run.task.kind, run.task.step_seq) == (model.kind, model.current)
        assert run.task.attempt == model.attempts[model.current] + 1
        assert dict(run.task.outputs) == {f"S{n}": n for n in range(model.current)}
        assert (run.task.event is not None) == (model.kind == "EVENT")


# --- the same through the whole engine

answers = st.sampled_from(["done", "wait", "retry", "raise"])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.lists(answers, max_size=3), min_size=1, max_size=4))
def test_a_chain_has_the_same_result_wherever_its_worker_is_lost(plans: list[list[str]]) -> None:
    """The answers of the handlers depend only on the task. The last output has the kind of the last task."""
    import asyncio

    app = Holdfast("sqlite://")
    chain = app.chain("random")
    for position, plan in enumerate(plans):

        @chain.step(f"S{position}", max_attempts=20)
        async def step(task: ChainTask, plan: list[str] = plan) -> Any:
            if task.kind == "RUN" and "wait" in plan:
                return Waiting("x", "1 minute")
            if task.attempt <= plan.count("retry"):
                return RetryStep("10 seconds", "again")
            if task.attempt <= plan.count("retry") + plan.count("raise"):
                raise ValueError("no")
            return [task.kind, len(task.outputs)]

    async def everywhere() -> Any:
        async with Harness(app) as h:
            return await h.crash_everywhere(chain)

    last = "WAITING_TIMEOUT" if "wait" in plans[-1] else "RUN"
    assert asyncio.run(everywhere()) == [last, len(plans) - 1]
