"""``OpenTelemetry``: spans of starts, turns and steps, and the propagation of their context.

Spans: ``start <workflow>`` (producer) for a start by a client; ``send <type>`` (producer) for an event that a client
sends; ``run <workflow>`` (consumer) for each turn of a run; ``step <name>`` for each step that is called, with its
attempts as events; ``deliver <type>`` for each delivery of an outbound event. The context of the start is stored with
the run (``RunOptions.trace``), so that every turn, on any worker, refers to it: by a link, or as its parent with
``parent=True``. The context of a sender is stored with the event, and the turn that consumes the event has a link to
it. A replay calls no steps, consumes no events and makes no spans.

The span of a step whose attempt failed stays open for the next attempt in this process. It ends with the step's result,
or when the run is taken over, the process ends or too many steps wait for a retry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast._version import __version__
from holdfast.extras import extra
from holdfast.kernel.attempt import Attempt
from holdfast.kernel.driver import Outcome
from holdfast.kernel.telemetry import Ended, Telemetry
from holdfast.store.protocol import (
    Advance,
    Claim,
    Commit,
    Committed,
    Fact,
    FactState,
    Finish,
    NewEvent,
    NewRun,
    Observed,
    OutboxRow,
    RecordedOperation,
    ReplyToEvent,
    RunRecord,
    StoredEvent,
    TaskRef,
)

with extra("otel", "OpenTelemetry"):
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NoOpTracerProvider,
        ProxyTracerProvider,
        Span,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
    )

_MAX_RETRYING = 1_000
_MAX_TRACE_BYTES = 4_096
_MARK = b'"trace":'
_SILENT = (NoOpTracerProvider, ProxyTracerProvider)


class _Step:
    """The open span of a step."""

    __slots__ = ("attempt", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.attempt = 0


class OpenTelemetry(Telemetry):
    """Traces by OpenTelemetry: ``Holdfast(telemetry=OpenTelemetry())``.

    ``parent``: turns are children of the start instead of being linked to it, so that a run is one trace. Choose it for
    short runs only: most back ends cannot show a trace that lasts for days. ``tracer_provider``: default the global
    provider.
    """

    observes_attempts = False
    unguarded = frozenset({"commit_written", "advance_written"})

    def __init__(self, *, parent: bool = False, tracer_provider: TracerProvider | None = None) -> None:
        self._parent = parent
        self._provider = tracer_provider
        self._tracer = trace.get_tracer("holdfast", __version__, tracer_provider)
        self._turns: dict[TaskRef, Span] = {}
        self._steps: dict[tuple[int, str], _Step] = {}
        """Spans of running attempts."""
        self._retrying: dict[tuple[int, str], _Step] = {}
        """Spans of steps that wait for their next attempt, the oldest first."""
        self._senders: dict[TaskRef, dict[int, str]] = {}
        """The contexts of events that turns have read and not consumed yet, by the number of the event."""
        self._consumed_before: dict[TaskRef, list[int]] = {}
        """Events that were written together with their turn (predictions), until the span of the turn begins."""

    def _is_off(self) -> bool:
        """True if no span is made: the program has no provider, or a silent one, and continues no trace."""
        provider = self._provider or trace.get_tracer_provider()
        return isinstance(provider, _SILENT) and not trace.get_current_span().get_span_context().is_valid

    # --- the client

    def start_began(self, runs: Sequence[NewRun]) -> Ended:
        if self._is_off():
            return _end_nothing
        first = runs[0]
        attributes: dict[str, Any] = {"holdfast.workflow.name": first.workflow}
        if len(runs) == 1:
            attributes["holdfast.instance.id"] = first.instance_id
        else:
            attributes["holdfast.batch.size"] = len(runs)
        span = self._tracer.start_span(f"start {first.workflow}", kind=SpanKind.PRODUCER, attributes=attributes)
        if not span.get_span_context().is_valid:
            return _end_nothing
        carrier = _carrier(trace.set_span_in_context(span))
        for run in runs:
            run.options = with_trace(run.options, carrier)
        return _end_of(span)

    def send_began(self, event: NewEvent) -> Ended:
        if self._is_off():
            return _end_nothing
        attributes = {
            "holdfast.workflow.name": event.workflow,
            "holdfast.instance.id": event.instance_id,
            "holdfast.event.type": event.type,
        }
        span = self._tracer.start_span(f"send {event.type}", kind=SpanKind.PRODUCER, attributes=attributes)
        if not span.get_span_context().is_valid:
            return _end_nothing
        event.trace = _text(_carrier(trace.set_span_in_context(span)))
        return _end_of(span)

    def request_began(self, headers: Mapping[str, str]) -> Ended:
        if "traceparent" not in headers or trace.get_current_span().get_span_context().is_valid:
            return _end_nothing
        token = otel_context.attach(propagate.extract(headers))
        return lambda _error: otel_context.detach(token)

    # --- turns

    def turn_began(self, claim: Claim, now_ms: int) -> None:
        self.observes_attempts = not self._is_off()
        if not self.observes_attempts:
            return
        span, context = self._turn_span(claim)
        if span.get_span_context().is_valid:
            self._turns[claim.task] = span
            self.events_read(claim, claim.mailbox_page.events)
            self._link_senders(claim.task, span, self._consumed_before.pop(claim.task, ()))
        otel_context.attach(trace.set_span_in_context(span, context))

    def turn_ended(self, claim: Claim, finish: Finish | None) -> None:
        span = self._turns.pop(claim.task, None)
        consumed = self._consumed_before.pop(claim.task, ())
        if span is None:
            if not self.observes_attempts:
                return
            if finish is None or claim.mailbox_page.last == 0:
                return
            span, _ = self._turn_span(claim)  # a turn that was written together with the event that caused it
            self.events_read(claim, claim.mailbox_page.events)
            self._link_senders(claim.task, span, consumed)
        self._senders.pop(claim.task, None)
        if finish is not None and span.is_recording():
            span.set_attribute("holdfast.run.status", finish.status.value)
            if finish.error is not None:
                span.set_status(Status(StatusCode.ERROR, _error_name(finish.error)))
        span.end()

    def operations_planned(self, claim: Claim, operations: Sequence[RecordedOperation]) -> None:
        new = [one.operation for one in operations if isinstance(one.operation, NewRun)]
        if new:
            _add_trace(new)
        _add_sender([one.operation for one in operations if isinstance(one.operation, NewEvent)])
        for one in operations:
            if isinstance(one.operation, ReplyToEvent):
                one.operation = one.operation._replace(trace=_text(_carrier()))

    def outbox_planned(self, claim: Claim, observed: Observed) -> None:
        context = _text(_carrier())
        if context is not None:
            observed.outbox = [event._replace(trace=context) for event in observed.outbox]

    def events_read(self, claim: Claim, events: Sequence[StoredEvent]) -> None:
        found = {event.n: event.trace for event in events if event.trace is not None}
        if found and self.observes_attempts:
            self._senders.setdefault(claim.task, {}).update(found)

    def _link_senders(self, task: TaskRef, span: Span, events: Iterable[int]) -> None:
        """Link the span of a turn to the senders of events that the turn consumes."""
        senders = self._senders.get(task, {})
        for n in events:
            sender = _context_of(senders.pop(n, None))
            if sender is not None:
                span.add_link(trace.get_current_span(sender).get_span_context())

    def _turn_span(self, claim: Claim) -> tuple[Span, Context]:
        run = claim.run
        stored = stored_context(run.options)
        links: list[Link] = []
        context = Context()
        if stored is not None:
            if self._parent:
                context = stored
            else:
                links.append(Link(trace.get_current_span(stored).get_span_context()))
        span = self._tracer.start_span(
            f"run {run.workflow}", context=context, kind=SpanKind.CONSUMER, attributes=_attributes(run), links=links
        )
        return span, context

    # --- attempts

    def attempt_began(self, attempt: Attempt) -> None:
        key = (attempt.run.run, attempt.key)
        step = self._retrying.pop(key, None)
        if step is not None and step.attempt + 1 != attempt.number:
            step.span.end()  # another worker made the attempts in between
            step = None
        if step is None:
            attributes = _attributes(attempt.run)
            attributes["holdfast.step.key"] = attempt.key
            attributes["holdfast.attempt"] = attempt.number
            name = attempt.key.partition("#")[0] or attempt.key
            span = self._tracer.start_span(f"step {name}", attributes=attributes)
            if not span.get_span_context().is_valid:
                return
            step = _Step(span)
        step.attempt = attempt.number
        self._steps[key] = step
        otel_context.attach(trace.set_span_in_context(step.span))
        if step.span.is_recording():
            step.span.set_attribute("holdfast.attempt", attempt.number)
            step.span.add_event("attempt", {"holdfast.attempt": attempt.number})

    def attempt_ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        key = (attempt.run.run, attempt.key)
        step = self._steps.pop(key, None)
        if step is None:
            return
        if outcome is None:
            step.span.add_event("attempt abandoned", {"holdfast.attempt": attempt.number})
            step.span.end()
        elif outcome.failure is None:
            if outcome.writes is not None and outcome.writes.starts:
                _add_trace(outcome.writes.starts, trace.set_span_in_context(step.span))
            if outcome.writes is not None and outcome.writes.sends:
                _add_sender(outcome.writes.sends, trace.set_span_in_context(step.span))
            step.span.end()
        else:
            self._attempt_failed(key, step, outcome)

    def _attempt_failed(self, key: tuple[int, str], step: _Step, outcome: Outcome) -> None:
        failure = outcome.failure
        if failure is not None and step.span.is_recording():
            step.span.add_event(
                "attempt failed",
                {
                    "holdfast.attempt": outcome.attempt,
                    "exception.type": failure.name,
                    "exception.message": failure.message,
                },
            )
        self._retrying[key] = step
        if len(self._retrying) > _MAX_RETRYING:
            oldest = next(iter(self._retrying))
            self._retrying.pop(oldest).span.end()

    def commit_written(self, run: RunRecord, commit: Commit, result: Committed) -> None:
        if self._retrying:
            self._end_failed(run, commit.observed.facts)
        if commit.observed.deliveries and self.observes_attempts:
            consumed = [delivery.event for delivery in commit.observed.deliveries]
            turn = self._turns.get(commit.task)
            if turn is None:
                self._consumed_before[commit.task] = consumed
            else:
                self._link_senders(commit.task, turn, consumed)

    def advance_written(self, run: RunRecord, advance: Advance) -> None:
        if self._retrying:
            self._end_failed(run, advance.results)

    def _end_failed(self, run: RunRecord, facts: Sequence[Fact]) -> None:
        """End the spans of steps that have a result: they failed, because the span of a success has ended before."""
        for fact in facts:
            if fact.state == FactState.RESULT:
                step = self._retrying.pop((run.run, fact.key), None)
                if step is not None:
                    step.span.set_status(Status(StatusCode.ERROR, _error_name(fact.value)))
                    step.span.end()

    # --- the outbox

    def delivery_began(self, row: OutboxRow, run: RunRecord | None) -> Ended:
        stored = None if run is None else stored_context(run.options)
        attributes: dict[str, Any] = {
            "holdfast.workflow.name": row.workflow,
            "holdfast.instance.id": row.instance_id,
            "holdfast.run.number": row.number,
            "holdfast.attempt": row.attempts + 1,
        }
        published = _context_of(row.trace)
        context, links = Context(), []
        if self._parent:
            context = published or stored or context
        else:
            known = [one for one in (published, stored) if one is not None]
            links = [Link(trace.get_current_span(one).get_span_context()) for one in known]
        span = self._tracer.start_span(
            f"deliver {row.type}", context=context, kind=SpanKind.PRODUCER, attributes=attributes, links=links
        )
        if not span.get_span_context().is_valid:
            return _end_nothing
        otel_context.attach(trace.set_span_in_context(span))
        return _end_of(span)

    def close(self) -> None:
        for step in [*self._retrying.values(), *self._steps.values()]:
            step.span.end()
        for span in self._turns.values():
            span.end()
        self._retrying.clear()
        self._steps.clear()
        self._turns.clear()
        self._senders.clear()
        self._consumed_before.clear()


def _attributes(run: RunRecord) -> dict[str, Any]:
    return {
        "holdfast.workflow.name": run.workflow,
        "holdfast.instance.id": run.instance_id,
        "holdfast.run.number": run.number,
    }


def _end_nothing(_error: BaseException | None) -> None:
    """Do nothing, at the end of an operation without a span."""


def _end_of(span: Span) -> Ended:
    def ended(error: BaseException | None) -> None:
        if error is not None and span.is_recording():
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        span.end()

    return ended


def _error_name(error: bytes | None) -> str:
    try:
        return str(json.loads(error or b"{}").get("name", ""))
    except (ValueError, AttributeError):
        return ""


# --- the stored context


def _carrier(context: Context | None = None) -> dict[str, str]:
    """The context as headers; without baggage and state if these are too long to be stored."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    if sum(len(name) + len(value) for name, value in carrier.items()) > _MAX_TRACE_BYTES:
        carrier = {name: value for name, value in carrier.items() if name == "traceparent"}
    return carrier


def _add_trace(runs: Sequence[NewRun], context: Context | None = None) -> None:
    carrier = _carrier(context)
    for run in runs if carrier else ():
        run.options = with_trace(run.options, carrier)


def _add_sender(events: Sequence[NewEvent], context: Context | None = None) -> None:
    """Add the context of the sender to events."""
    if events:
        text = _text(_carrier(context))
        for event in events:
            event.trace = text


def _text(carrier: Mapping[str, str]) -> str | None:
    """The context as an event stores it."""
    return json.dumps(carrier, separators=(",", ":")) if carrier else None


def _context_of(text: str | None) -> Context | None:
    """The context that is stored with an event."""
    return None if text is None else _extracted(json.loads(text))


def with_trace(options: bytes | None, carrier: Mapping[str, str]) -> bytes | None:
    """The stored options of a run with the context."""
    if not carrier:
        return options
    content = {} if options is None else json.loads(options)
    content["trace"] = dict(carrier)
    return json.dumps(content, separators=(",", ":")).encode()


def stored_context(options: bytes | None) -> Context | None:
    """The context that is stored with a run."""
    if options is None or _MARK not in options:
        return None
    return _extracted(json.loads(options).get("trace"))


def _extracted(carrier: Any) -> Context | None:
    if not isinstance(carrier, dict):
        return None
    context = propagate.extract(carrier, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
