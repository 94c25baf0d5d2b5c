"""A new authoring model is a package of its own and one registration: this module adds a fourth model to an app.

A ``doorbell`` is a function that is called each time an event of type "ring" arrives, a fixed number of times; its run
returns the list of results. Nothing outside this module knows doorbells.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient

import holdfast
from holdfast import Handle, Holdfast
from holdfast.core import codec
from holdfast.core.model import Status
from holdfast.core.records import StepRecord
from holdfast.errors import StateError
from holdfast.kernel.definition import Blueprint, Definition
from holdfast.kernel.driver import Decision, Outcome
from holdfast.kernel.model import Model, RecordedRun
from holdfast.kernel.startable import Startable
from holdfast.store.protocol import (
    Delivery,
    Fact,
    FactState,
    Finish,
    Following,
    Observed,
    RecordedOperation,
    RunRecord,
    Snapshot,
    StoredEvent,
)

# --- the package of the model

DOORBELL, RING = "doorbell", "ring"


class DoorbellStatus(StrEnum):
    LISTENING = "LISTENING"
    SILENT = "SILENT"


class DoorbellModel(Model):
    kind = DOORBELL
    native_statuses = DoorbellStatus

    def native_status(self, status: Status) -> str:
        return DoorbellStatus.SILENT.value if status.terminal else DoorbellStatus.LISTENING.value

    def current_step(self, steps: Sequence[StepRecord]) -> StepRecord | None:
        return steps[-1] if steps else None

    def steps(self, run: RecordedRun) -> list[StepRecord]:
        return super().steps(RecordedRun(run.row, _results(run.facts), run.payloads))

    def why(self, run: RecordedRun, steps: Sequence[StepRecord], now_ms: int) -> str | None:
        rings = next(fact.n for fact in run.facts if fact.state == FactState.PLAN)
        return f"rung {len(steps)} of {rings} times"


def _results(facts: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact.state == FactState.RESULT]


@dataclass
class DoorbellCall:
    key: str
    args: tuple[Any, ...]
    function: Callable[..., Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    progress: bytes | None = None
    max_attempts: int | None = 1
    attempt: int = 1
    is_async: bool = False
    timeout_ms: int | None = None
    wants_tx: None = None

    def arguments(self, tx: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return self.args, self.kwargs

    def record(self, value: Any) -> tuple[bytes, Any]:
        return codec.encode(value, what="result"), value

    def start_fact(self, attempt: int, at: int) -> Fact | None:
        return None


class DoorbellMachine:
    """Calls the function for one event at a time."""

    def __init__(self, function: Callable[[Any], Any], run: RunRecord, facts: Sequence[Fact]) -> None:
        self._function = function
        self._begun = run.started_at is not None
        self._rings = next(fact.n for fact in facts if fact.state == FactState.PLAN)
        self._done = _results(facts)
        self._events: dict[int, StoredEvent] = {}
        self._answered: StoredEvent | None = None

    def advance(
        self, now_ms: int, outcomes: Sequence[Outcome] = (), events: Sequence[StoredEvent] = (), **_options: Any
    ) -> Decision:
        observed = Observed()
        self._events |= {event.n: event for event in events}
        for outcome in outcomes:
            event, self._answered = self._answered, None
            assert event is not None
            observed.facts = [self._result(outcome)]
            observed.deliveries = [Delivery(self._events.pop(event.n).n, outcome.key, now_ms)]
        calls, end = [], None
        if len(self._done) == self._rings:
            output = b"[" + b",".join(fact.value or b"null" for fact in self._done) + b"]"
            end = Finish(Status.COMPLETE, output=output)
        elif self._answered is None and self._events:
            self._answered = self._events[min(self._events)]
            calls = [
                DoorbellCall(f"ring {len(self._done) + 1}", (codec.plain(self._answered.payload),), self._function)
            ]
        started_at, self._begun = None if self._begun else now_ms, True
        waiting = end is None and self._answered is None
        topics = frozenset({RING} if waiting else ())
        return Decision(observed, Following(), calls, (), None, False, topics, end, started_at)

    def _result(self, outcome: Outcome) -> Fact:
        number = len(self._done) + 1
        fact = Fact(
            FactState.RESULT, outcome.key, 0, RING, outcome.at, outcome.started_at, seq=number, value=outcome.value,
            attempts=1,
        )  # fmt: skip
        self._done.append(fact)
        return fact

    def number_operations(self, operations: Sequence[RecordedOperation]) -> None: ...

    def halt(self) -> None: ...

    def close(self) -> None: ...


class Doorbell(Startable[None, list[Any]]):
    """A doorbell, and the driver of its runs."""

    def __init__(self, name: str, rings: int, function: Callable[[Any], Any]) -> None:
        self.name = name
        self._rings = rings
        self._function = function

    def definition(self) -> Definition:
        decode = codec.decoder(Any)
        return Definition(self.name, DOORBELL, self, decode, decode, blueprint=self._blueprint)

    def _blueprint(self, now_ms: int) -> Blueprint:
        return Blueprint([Fact(FactState.PLAN, RING, self._rings, RING, now_ms, now_ms)])

    def open(
        self, run: RunRecord, snapshot: Snapshot | None, requests: Any, *, strict: bool = False
    ) -> DoorbellMachine:
        assert snapshot is not None
        return DoorbellMachine(self._function, run, snapshot.facts)


# --- its use


def greet(visitor: str) -> str:
    return f"hello, {visitor}"


@pytest.fixture
def doorbell() -> Doorbell:
    return Doorbell("front-door", 2, greet)


@pytest.fixture
async def app(tmp_path: Path, doorbell: Doorbell) -> AsyncIterator[Holdfast]:
    app = Holdfast(f"sqlite:///{tmp_path}/model.db")
    app.registry.models.add(DoorbellModel())  # the registration of the model
    app.registry.add(doorbell.definition())
    async with app:
        yield app


async def waiting(run: Handle[Any], why: str) -> None:
    """Wait until the run is released and explains itself with ``why``."""
    while (described := await run.describe()).why != why or described.status != "waiting":
        await asyncio.sleep(0.01)


async def test_a_run_of_a_new_model_is_executed_by_the_worker(app: Holdfast, doorbell: Doorbell) -> None:
    run = await app.start(doorbell)

    await run.send_event(RING, "ann")
    await run.send_event(RING, "bob")

    assert await run.result(timeout=60) == ["hello, ann", "hello, bob"]


async def test_a_new_model_decides_the_history_the_status_and_the_explanation(
    app: Holdfast, doorbell: Doorbell
) -> None:
    run = await app.start(doorbell)
    await waiting(run, "rung 0 of 2 times")

    await run.send_event(RING, "ann")
    await waiting(run, "rung 1 of 2 times")
    described = await run.describe()
    status = await run.status()
    await run.send_event(RING, "bob")
    await run.result(timeout=60)

    assert (described.kind, described.native_status) == (DOORBELL, "LISTENING")
    assert described.current_step is not None
    assert (described.current_step.name, described.current_step.result) == ("ring 1", "hello, ann")
    assert (status.kind, status.native_status) == (DOORBELL, "LISTENING")
    assert ((await run.status()).status, (await run.status()).native_status) == ("complete", "SILENT")
    assert [(step.name, step.result) for step in (await run.history()).steps] == [
        ("ring 1", "hello, ann"),
        ("ring 2", "hello, bob"),
    ]
    assert (await run.describe()).why == "complete"


async def test_a_restart_repeats_the_plan_of_a_new_model(app: Holdfast, doorbell: Doorbell) -> None:
    run = await app.start(doorbell)
    await run.send_event(RING, "ann")
    await waiting(run, "rung 1 of 2 times")

    await run.restart()
    await waiting(run, "rung 0 of 2 times")
    for visitor in ("cid", "dan"):
        await run.send_event(RING, visitor)

    assert await run.result(timeout=60) == ["hello, cid", "hello, dan"]


async def test_a_model_without_rules_for_repair_refuses_a_fork(app: Holdfast, doorbell: Doorbell) -> None:
    run = await app.start(doorbell, id="d")
    await run.send_event(RING, "ann")
    await waiting(run, "rung 1 of 2 times")

    with pytest.raises(StateError, match="front-door/d is a doorbell: this process has no rules for the repair"):
        await run.fork(before="ring 1")


async def test_the_http_api_shows_runs_of_a_new_model(app: Holdfast, doorbell: Doorbell) -> None:
    run = await app.start(doorbell, id="d")
    await waiting(run, "rung 0 of 2 times")

    async with AsyncClient(transport=ASGITransport(app.asgi(api="")), base_url="http://localhost") as api:
        meta = (await api.get("/front-door/instances/d")).json()["meta"]
        [listed] = (await api.get("/front-door/instances")).json()["instances"]
        document = (await api.get("/openapi.json")).json()

    assert (meta["kind"], meta["nativeStatus"], meta["why"]) == (DOORBELL, "LISTENING", "rung 0 of 2 times")
    assert (listed["kind"], listed["nativeStatus"]) == (DOORBELL, "LISTENING")
    assert document["components"]["schemas"]["DoorbellStatus"]["enum"] == ["LISTENING", "SILENT"]
    assert "/front-door/instances" in document["paths"]
    assert "/front-door/mermaid" not in document["paths"]  # a run of a doorbell has no units


async def test_a_process_without_the_model_lists_and_describes_its_runs(
    app: Holdfast, doorbell: Doorbell, tmp_path: Path
) -> None:
    run = await app.start(doorbell, id="d")
    await run.send_event(RING, "ann")
    await waiting(run, "rung 1 of 2 times")
    other = Holdfast(f"sqlite:///{tmp_path}/model.db")
    other.remote("front-door")

    async with other.connect():
        [listed] = (await other.list()).items
        run = await other.get("front-door", "d")
        described, history = await run.describe(), await run.history()

    assert (listed.details.kind, listed.details.native_status) == (DOORBELL, None)
    assert described.why.startswith("waiting for message 'ring' (")
    assert [step.name for step in history.steps] == ["ring 1"]


OMITS_THE_DEFAULT = "response_bodies.py"
"""Compares a kind with the default, in order to leave the default out of a response."""


@pytest.mark.parametrize("package", ["client", "core", "http", "kernel", "runner"])
def test_a_package_that_serves_all_models_names_no_kind(package: str) -> None:
    found = []
    for path in sorted((Path(holdfast.__file__).parent / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id in ("GRAPH", "CHAIN", "WORKFLOW"):
                found.append(f"{path.name}:{node.lineno}: {node.id}")
            if isinstance(node, ast.Constant) and node.value in ("graph", "chain"):
                found.append(f"{path.name}:{node.lineno}: {node.value}")
            if isinstance(node, ast.Compare) and "DEFAULT_KIND" in ast.unparse(node) and path.name != OMITS_THE_DEFAULT:
                found.append(f"{path.name}:{node.lineno}: DEFAULT_KIND")

    assert found == []
