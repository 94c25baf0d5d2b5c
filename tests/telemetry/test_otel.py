"""Traces: spans of starts, turns, steps and deliveries, and the context that travels with a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from apps import MakeApp
from driving import lose_worker, until_status
from holdfast import ChainTask, Completed, Context, Holdfast, Outbound, OutboundEvent, Retry, StepTx, Webhook
from holdfast.telemetry.otel import OpenTelemetry
from holdfast.testing import Harness


class Spans:
    """The finished spans of a provider."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def app(spans: Spans) -> Holdfast:
    return Holdfast("sqlite://", telemetry=OpenTelemetry(tracer_provider=spans.provider))


def context_of(span: ReadableSpan) -> Any:
    context = span.get_span_context()
    assert context is not None
    return context


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


async def test_a_run_has_a_start_a_turn_and_its_steps(app: Holdfast, h: Harness, spans: Spans) -> None:
    @app.step
    async def charge(amount: int) -> int:
        return amount

    @app.workflow
    async def order(ctx: Context, amount: int) -> int:
        return await charge(amount)

    await h.start(order, 5, id="o-1")
    await h.run_until_idle()

    start, run, step = spans.one("start order"), spans.one("run order"), spans.one("step charge")
    assert (start.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.parent is None
    assert linked(run) == [context_of(start).span_id]
    assert step.parent is not None
    assert step.parent.span_id == context_of(run).span_id
    assert dict(step.attributes or {}) == {
        "holdfast.workflow.name": "order", "holdfast.instance.id": "o-1", "holdfast.run.number": 0,
        "holdfast.step.key": "charge", "holdfast.attempt": 1,
    }  # fmt: skip
    assert (run.attributes or {})["holdfast.run.status"] == "complete"
    assert [event.name for event in step.events] == ["attempt"]


async def test_attempts_are_events_of_one_span(app: Holdfast, h: Harness, spans: Spans) -> None:
    tried: list[int] = []

    @app.step(retry=Retry(2, delay="1 minute"))
    async def charge() -> int:
        tried.append(1)
        if len(tried) < 3:
            raise KeyError("x")
        return 5

    @app.step(retry=Retry(0))
    async def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def order(ctx: Context) -> None:
        await charge()
        await fail()

    await h.start(order)
    await h.run_until_idle()
    await h.advance("10 minutes")

    step, failed = spans.one("step charge"), spans.one("step fail")
    assert [(event.name, (event.attributes or {})["holdfast.attempt"]) for event in step.events] == [
        ("attempt", 1), ("attempt failed", 1), ("attempt", 2), ("attempt failed", 2), ("attempt", 3),
    ]  # fmt: skip
    assert (step.events[1].attributes or {})["exception.type"] == "KeyError"
    assert (step.attributes or {})["holdfast.attempt"] == 3
    assert step.status.status_code is StatusCode.UNSET
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError")
    assert len(spans.named("run order")) == 3
    assert spans.named("run order")[-1].status.status_code is StatusCode.ERROR


async def test_a_replay_makes_no_spans_of_steps(app: Holdfast, h: Harness, spans: Spans) -> None:
    @app.step
    async def charge() -> int:
        return 1

    @app.workflow
    async def order(ctx: Context) -> Any:
        await charge()
        return await ctx.wait_for_event("go", type="go")

    run = await h.start(order)
    await h.run_until_idle()
    await h.restart()
    await run.send_event("go")
    await h.run_until_idle()

    assert len(spans.named("step charge")) == 1
    assert len(spans.named("run order")) == 2
    start, sent = context_of(spans.one("start order")).span_id, context_of(spans.one("send go")).span_id
    assert [linked(turn) for turn in spans.named("run order")] == [[start], [start, sent]]


async def test_a_takeover_is_linked_to_the_start_and_ends_the_abandoned_step(
    app: Holdfast, h: Harness, spans: Spans
) -> None:
    calls: list[int] = []

    @app.step
    async def slow() -> None:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.sleep(3600)

    @app.workflow
    async def order(ctx: Context) -> None:
        await slow()

    await h.start(order)
    await h.tick()
    await lose_worker(h)
    await h.run_until_idle()
    await h.advance("1 minute")

    first, second = spans.named("step slow")
    assert [event.name for event in first.events] == ["attempt", "attempt abandoned"]
    assert (second.attributes or {})["holdfast.attempt"] == 2
    start = context_of(spans.one("start order")).span_id
    assert {span_id for turn in spans.named("run order") for span_id in linked(turn)} == {start}


async def test_the_context_travels_to_children_and_to_runs_that_steps_start(
    app: Holdfast, h: Harness, spans: Spans
) -> None:
    @app.workflow
    async def child(ctx: Context) -> None: ...

    @app.workflow
    async def other(ctx: Context) -> None: ...

    @app.step
    async def begin(tx: StepTx) -> None:
        tx.start(other, id="x")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await begin()
        await ctx.run(child, context={"tenant": "t"})

    await h.start(parent)
    await h.run_until_idle()

    turns = {context_of(turn).span_id for turn in spans.named("run parent")}
    assert set(linked(spans.one("run child"))) <= turns
    assert linked(spans.one("run child"))
    assert linked(spans.one("run other")) == [context_of(spans.one("step begin")).span_id]


async def test_a_turn_is_linked_to_the_senders_of_the_events_that_it_consumes(
    app: Holdfast, h: Harness, spans: Spans
) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_event("first", type="first")
        return [first.payload, (await ctx.wait_for_event("second", type="second")).payload]

    run = await h.start(order)
    await h.run_until_idle()
    await run.send_event("second", 2)
    await h.run_until_idle()
    await run.send_event("first", 1)
    await h.run_until_idle()

    assert await run.result(timeout=60) == [1, 2]
    names = ("start order", "send first", "send second")
    expected = [context_of(spans.one(name)).span_id for name in names]
    assert [linked(turn) for turn in spans.named("run order")] == [expected[:1], expected]
    send = spans.one("send first")
    assert send.kind is SpanKind.PRODUCER
    assert dict(send.attributes or {}) == {
        "holdfast.workflow.name": "order", "holdfast.instance.id": run.id, "holdfast.event.type": "first",
    }  # fmt: skip


async def test_a_turn_that_reads_an_event_while_a_step_runs_is_linked_to_its_sender(
    make_app: MakeApp, spans: Spans
) -> None:
    app = make_app(telemetry=OpenTelemetry(tracer_provider=spans.provider))
    running, goes_on = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> None:
        running.set()
        await goes_on.wait()

    @app.workflow
    async def order(ctx: Context) -> None:
        await slow()
        await ctx.wait_for_event("go", type="go")

    async with app:
        run = await app.start(order)
        await running.wait()
        await run.send_event("go")
        goes_on.set()
        await run.result(timeout=60)

    last = spans.named("run order")[-1]
    assert context_of(spans.one("send go")).span_id in linked(last)


async def test_a_turn_that_is_written_with_its_event_is_linked_to_the_sender(make_app: MakeApp, spans: Spans) -> None:
    app = make_app(telemetry=OpenTelemetry(tracer_provider=spans.provider))

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    async with app:
        run = await app.start(order)
        await until_status(run, "waiting")
        await run.send_event("go")
        await run.result(timeout=60)

    start, sent = context_of(spans.one("start order")).span_id, context_of(spans.one("send go")).span_id
    assert [linked(turn) for turn in spans.named("run order")] == [[start], [start, sent]]


async def test_messages_of_runs_and_of_steps_carry_the_context_of_their_sender(
    app: Holdfast, h: Harness, spans: Spans
) -> None:
    @app.workflow
    async def receiver(ctx: Context) -> list[Any]:
        inbox = ctx.listen("note")
        return [await inbox.receive(), await inbox.receive()]

    @app.step
    async def tell(tx: StepTx, pid: str) -> None:
        tx.send(pid, "note", "from a step")

    @app.workflow
    async def sender(ctx: Context, pid: str) -> None:
        await ctx.send(pid, "note", "from a run")
        await tell(pid)

    target = await h.start(receiver)
    await h.run_until_idle()
    await h.restart()
    await h.start(sender, target.pid)
    await h.run_until_idle()

    assert await target.result(timeout=60) == ["from a run", "from a step"]
    links = {link for turn in spans.named("run receiver") for link in linked(turn)}
    assert context_of(spans.one("step tell")).span_id in links
    assert links & {context_of(turn).span_id for turn in spans.named("run sender")}


async def test_the_turn_that_receives_a_reply_is_linked_to_the_turn_that_gave_it(
    app: Holdfast, h: Harness, spans: Spans
) -> None:
    @app.workflow
    async def oracle(ctx: Context) -> None:
        question = await ctx.listen("question", messages=True).receive()
        await ctx.sleep("think", "1 hour")
        await question.reply(42)

    @app.workflow
    async def asker(ctx: Context, pid: str) -> Any:
        return await ctx.ask(pid, "question", timeout="1 day")

    target = await h.start(oracle)
    await h.run_until_idle()
    run = await h.start(asker, target.pid)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")

    assert await run.result(timeout=60) == 42
    links = {link for turn in spans.named("run asker") for link in linked(turn)}
    assert context_of(spans.named("run oracle")[-1]).span_id in links


@pytest.mark.above_the_store
async def test_a_request_with_a_traceparent_is_the_parent_of_the_sent_event(
    app: Holdfast, h: Harness, spans: Spans
) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    await h.start(order, id="a")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    transport = httpx.ASGITransport(h.app.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://test/api/workflows") as http:
        await http.post("/order/instances/a/events", json={"type": "go"}, headers={"traceparent": parent})

    send = spans.one("send go")
    assert send.parent is not None
    assert f"{send.parent.span_id:016x}" == parent.split("-")[2]


async def test_the_context_of_the_caller_and_of_steps_is_current(app: Holdfast, h: Harness, spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")

    @app.step
    async def charge() -> None:
        with tracer.start_as_current_span("inside"):
            await asyncio.sleep(0)

    @app.step
    def plain() -> None:
        tracer.start_span("in a thread").end()

    @app.workflow
    async def order(ctx: Context) -> None:
        await charge()
        await plain()

    with tracer.start_as_current_span("caller") as caller:
        await h.start(order)
    await h.run_until_idle()

    start = spans.one("start order")
    assert start.parent is not None
    assert start.parent.span_id == caller.get_span_context().span_id
    for name, step in (("inside", "step charge"), ("in a thread", "step plain")):
        parent = spans.one(name).parent
        assert parent is not None
        assert parent.span_id == context_of(spans.one(step)).span_id
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.above_the_store
async def test_with_parent_a_run_is_one_trace(spans: Spans) -> None:
    app = Holdfast("sqlite://", telemetry=OpenTelemetry(parent=True, tracer_provider=spans.provider))

    @app.workflow
    async def child(ctx: Context) -> None: ...

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")
        await ctx.run(child)

    async with Harness(app) as h:
        await h.start(order)
        await h.run_until_idle()
        await h.advance("2 hours")

    assert len({context_of(span).trace_id for span in spans.all}) == 1
    assert not any(span.links for span in spans.all)
    start = context_of(spans.one("start order")).span_id
    assert [turn.parent.span_id for turn in spans.named("run order") if turn.parent][:2] == [start, start]


async def test_outbound_events_carry_the_context_to_the_webhook(
    app: Holdfast, h: Harness, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, str]] = []

    async def post(self: Webhook, body: bytes, headers: dict[str, str]) -> int:
        sent.append(dict(headers))
        return 200

    monkeypatch.setattr(Webhook, "_post", post)
    chain = app.chain("mail")

    @chain.step("SEND")
    async def send(task: ChainTask) -> Completed:
        return Completed(outbound=[Outbound("sent", {})])

    hook = Webhook("http://127.0.0.1:9/hooks", secret="s" * 32)

    @app.outbox
    async def deliver(event: OutboundEvent) -> None:
        await hook(event)

    await h.start(chain)
    await h.run_until_idle()

    delivery = spans.one("deliver sent")
    assert linked(delivery) == [context_of(spans.one(name)).span_id for name in ("run mail", "start mail")]
    assert sent[0]["traceparent"].split("-")[1:3] == [
        f"{context_of(delivery).trace_id:032x}", f"{context_of(delivery).span_id:016x}",
    ]  # fmt: skip


@pytest.mark.above_the_store
async def test_a_request_with_a_traceparent_is_the_parent_of_the_start(app: Holdfast, h: Harness, spans: Spans) -> None:
    @app.workflow
    async def order(ctx: Context) -> None: ...

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    transport = httpx.ASGITransport(h.app.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://test/api/workflows") as http:
        await http.post("/order/instances", json={"id": "a"}, headers={"traceparent": parent})
        await http.post("/order/instances/batch", json={"instances": [{"id": "b"}]}, headers={"traceparent": parent})
        await http.post("/order/instances", json={"id": "c"})

    first, second, third = spans.named("start order")
    for start in (first, second):
        assert f"{context_of(start).trace_id:032x}" == parent.split("-")[1]
        assert start.parent is not None
        assert f"{start.parent.span_id:016x}" == parent.split("-")[2]
    assert third.parent is None


@pytest.mark.above_the_store
async def test_without_a_provider_nothing_is_stored_with_a_run(h: Harness) -> None:
    from opentelemetry.trace import NoOpTracerProvider

    app = Holdfast("sqlite://", telemetry=OpenTelemetry(tracer_provider=NoOpTracerProvider()))

    @app.workflow
    async def order(ctx: Context) -> int:
        return 1

    async with Harness(app) as harness:
        run = await harness.start(order)
        await harness.run_until_idle()
        assert await run.result(timeout=60) == 1
        row = await harness.app._opened().client.instances.find("order", run.id)
        assert row.options is None
        [telemetry] = app.telemetry
        assert not telemetry._turns  # type: ignore[attr-defined]
        assert not telemetry._steps  # type: ignore[attr-defined]


PROGRAM = """
import asyncio, json, os, sys
from holdfast import Context, Holdfast, OpenTelemetry, WorkerConfig
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Lines(SpanExporter):
    def export(self, spans):
        for span in spans:
            links = [f"{link.context.span_id:016x}" for link in span.links]
            print(json.dumps([span.name, f"{span.get_span_context().span_id:016x}", links]), flush=True)
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
trace.set_tracer_provider(provider)
worker = WorkerConfig(lease="1 second", poll="50 ms")
app = Holdfast(sys.argv[1], schema=sys.argv[2] or None, worker=worker, telemetry=OpenTelemetry())

@app.step
async def first() -> int:
    return 1

@app.step
async def second() -> int:
    if sys.argv[3] == "start":
        print('["second begins"]', flush=True)
        await asyncio.sleep(60)
    return 2

@app.workflow
async def order(ctx: Context) -> int:
    return await first() + await second()

async def main():
    async with app:
        if sys.argv[3] == "start":
            run = await app.start(order, id="o")
        else:
            run = await app.get(order, "o")
        print(json.dumps(["result", await run.result(timeout=60)]), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def location(make_app: MakeApp) -> tuple[str, str]:
    app = make_app()
    return app.url, app.schema or ""


def test_the_context_survives_a_kill_between_two_steps(location: tuple[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    first = subprocess.Popen([sys.executable, program, *location, "start"], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    seen: list[Any] = []
    for line in first.stdout:
        seen.append(json.loads(line))
        if seen[-1] == ["second begins"]:
            break
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()

    second = subprocess.run(
        [sys.executable, program, *location, "continue"], capture_output=True, text=True, check=True, timeout=300
    )

    [start] = [span for span in seen if span[0] == "start order"]
    assert [span[0] for span in seen] == ["start order", "step first", "second begins"]
    later = [json.loads(line) for line in second.stdout.splitlines()]
    assert ["result", 3] in later
    [turn] = [span for span in later if span[0] == "run order"]
    assert turn[2] == [start[1]]
    assert [span[0] for span in later if span[0].startswith("step")] == ["step second"]
