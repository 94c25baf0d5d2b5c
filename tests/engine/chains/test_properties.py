"""Random chains, random things that happen to them, and a model that says in a few lines what must come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import ChainTask, Completed, Dead, Holdfast, Outbound, RetryStep, Waiting
from holdfast.core.model import Status
from holdfast.store.protocol import Finish
from holdfast.testing import Harness

from .rig import Rig, program

TYPES = ("x", "y")
TIMEOUT = 5000


@dataclass
class Model:
    """The specification, as short as it can be said: one current step and what it is at."""

    steps: int
    most: int
    current: int = 0
    state: str = "RUNNING"
    attempts: list[int] = field(default_factory=list)
    kind: str = "RUN"
    wait: tuple[str, int] = ("", 0)
    due: int = 0
    now: int = 0
    mail: list[tuple[str, int]] = field(default_factory=list)
    """Unread: type and time."""
    out: int = 0

    def __post_init__(self) -> None:
        self.attempts = [0] * self.steps

    # --- answers of the handler

    def completes(self, out: int) -> None:
        self.out += out
        self.current += 1
        self.kind, self.state = "RUN", "RUNNING"
        if self.current == self.steps:
            self.state = "COMPLETED"

    def waits_for(self, event_type: str, ms: int, out: int) -> None:
        self.out += out
        self.wait, self.state = (event_type, self.now + ms), "WAITING"
        self.look(opened=True)

    def fails(self, backoff: int) -> None:
        self.attempts[self.current] += 1
        if self.attempts[self.current] >= self.most:
            self.state = "FAILED"
        else:
            self.state, self.due = "READY", self.now + backoff
            self.look()

    def dies(self, out: int) -> None:
        self.out += out
        self.attempts[self.current] += 1
        self.state = "FAILED"

    # --- the world

    def look(self, *, opened: bool = False) -> None:
        if self.state == "READY" and self.due <= self.now:
            self.state = "RUNNING"
        if self.state != "WAITING":
            return
        event_type, deadline = self.wait
        at = next((n for n, (type_, _) in enumerate(self.mail) if type_ == event_type), None)
        if at is not None and self.mail[at][1] <= deadline:
            del self.mail[at]
            self.kind, self.state = "EVENT", "RUNNING"
        elif not opened and (at is not None or deadline <= self.now):
            self.kind, self.state = "WAITING_TIMEOUT", "RUNNING"

    def states(self) -> list[str]:
        if self.state == "COMPLETED":
            return ["DONE"] * self.steps
        here = {"FAILED": "DEAD"}.get(self.state, self.state)
        return ["DONE"] * self.current + [here] + ["PENDING"] * (self.steps - self.current - 1)


outs = st.integers(0, 2)
times = st.integers(0, 8).map(lambda n: n * 1000)
happenings = st.one_of(
    st.tuples(st.just("completes"), outs),
    st.tuples(st.just("waits"), st.sampled_from(TYPES), times, outs),
    st.tuples(st.just("retries"), times),
    st.tuples(st.just("raises")),
    st.tuples(st.just("dies"), outs),
    st.tuples(st.just("times out")),
    st.tuples(st.just("is lost")),
    st.tuples(st.just("event"), st.sampled_from(TYPES)),
    st.tuples(st.just("time"), times),
    st.tuples(st.just("reopened")),
)
ANSWERS = ("completes", "waits", "retries", "raises", "dies", "times out")


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(happenings, max_size=25))
def test_a_chain_does_what_the_model_says(steps: int, most: int, script: list[tuple[Any, ...]]) -> None:
    rig = Rig(program(*(f"S{n}" for n in range(steps)), max_attempts=most, timeout_ms=TIMEOUT))
    model = Model(steps, most)
    rig.go()
    for happening, *args in script:
        if happening in ANSWERS and model.state != "RUNNING":
            continue
        happen(rig, model, happening, args)
        check(rig, model)
        if model.state in ("COMPLETED", "FAILED"):
            return


def happen(rig: Rig, model: Model, happening: str, args: list[Any]) -> None:
    match happening, args:
        case "completes", [out]:
            rig.answer(Completed(model.current, events(out)))
            model.completes(out)
        case "waits", [event_type, ms, out]:
            rig.answer(Waiting(event_type, ms / 1000, events(out)))
            model.waits_for(event_type, ms, out)
        case "retries", [ms]:
            rig.answer(RetryStep(ms / 1000, "again"))
            model.fails(ms)
        case "raises", []:
            rig.answer(ValueError("no"))
            model.fails(1000 * 2 ** model.attempts[model.current])
        case "dies", [out]:
            rig.answer(Dead("no", events(out)))
            model.dies(out)
        case "times out", []:
            rig.time_out()
            model.now += TIMEOUT
            model.fails(1000 * 2 ** model.attempts[model.current])
        case "is lost", []:
            rig.go(lost=True)
            if model.state == "RUNNING":
                model.fails(0)
            model.look()
        case "event", [event_type]:
            rig.send(event_type)
            model.mail.append((event_type, model.now))
            rig.go()
            model.look()
        case "time", [ms]:
            rig.wait_ms(ms)
            model.now += ms
            model.look()
        case _:
            rig.reopen()
            rig.go()
            model.look()


def events(count: int) -> list[Outbound]:
    return [Outbound("told", n) for n in range(count)]


def check(rig: Rig, model: Model) -> None:
    assert rig.now == model.now
    assert rig.states == model.states()
    assert [step.attempts for step in rig.steps()] == model.attempts
    assert len(rig.outbox) == model.out
    assert len(rig.mail) - len(rig.consumed) == len(model.mail)
    ended = rig.end.status if isinstance(rig.end, Finish) else None
    assert ended == {"COMPLETED": Status.COMPLETE, "FAILED": Status.ERRORED}.get(model.state)
    if model.state == "RUNNING":
        assert (rig.task.kind, rig.task.step_seq) == (model.kind, model.current)
        assert rig.task.attempt == model.attempts[model.current] + 1
        assert dict(rig.task.outputs) == {f"S{n}": n for n in range(model.current)}
        assert (rig.task.event is not None) == (model.kind == "EVENT")


# --- the same through the whole engine

answers = st.sampled_from(["done", "wait", "retry", "raise"])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(answers, max_size=3), min_size=1, max_size=4))
def test_any_chain_ends_the_same_wherever_its_worker_is_lost(plans: list[list[str]]) -> None:
    """Handlers whose answers depend on nothing but facts: how often they waited, in the end, is in the outputs."""
    import asyncio

    app = Holdfast("sqlite://")
    chain = app.chain("random")
    for place, plan in enumerate(plans):

        @chain.step(f"S{place}", max_attempts=20)
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
