"""A run's history as a story: what happened, in the order in which it happened.

The server lists steps, events and logs, each with the times of its beginning and end; here they become one list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from textwrap import indent

from rich.text import Text

from holdfast.cli.safe import one_line
from holdfast.cli.shown import brief, coloured, error_text, log_line, step_name, traceback_text, when
from holdfast.cli.wire import Fields

_LATER = datetime.max.replace(tzinfo=UTC)
_FIRST, _LAST = -1, 1_000_000
_MILLISECOND = timedelta(milliseconds=1)
_LASTING = ("do", "sleep", "waitForEvent", "child", "ask")
"""Steps with a beginning and an end; what a run did to others is done at once."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the story. ``place`` puts those of the same millisecond in order; no time: it is still to come."""

    at: datetime | None
    place: tuple[int, int]
    text: Text

    @property
    def order(self) -> tuple[datetime, tuple[int, int]]:
        return self.at or _LATER, self.place


def told(
    steps: list[Fields], events: list[Fields], logs: list[Fields], run: Fields | None, *, full: bool = False
) -> list[Moment]:
    """All moments, first to last. ``run``: the description of the instance, if this is its current run.

    ``full``: errors with their tracebacks.
    """
    moments = [*_of_events(events), *_of_logs(logs, steps)]
    for number, step in enumerate(steps):
        moments += _traced(_of_step(number, step), step, full)
    if run is not None:
        moments += _traced(_of_run(run), run.fields("details"), full)
    return sorted(moments, key=lambda moment: moment.order)


def _traced(moments: Iterable[Moment], subject: Fields, full: bool) -> list[Moment]:
    """The last moment of a step or a run that failed has the traceback below it."""
    shown, traceback = [*moments], traceback_text(subject.fields("error"))
    if full and shown and traceback:
        shown[-1].text.append("\n" + indent(traceback, " " * 4))
    return shown


def _of_run(run: Fields) -> Iterator[Moment]:
    meta, details = run.fields("meta"), run.fields("details")
    if meta.time("startedAt") is not None:
        yield Moment(meta.time("startedAt"), (_FIRST - 1, 0), Text("the run began"))
    if meta.time("completedAt") is not None:
        status, error = one_line(details.text("status")), error_text(details.fields("error"))
        good = status == "complete"
        text = f"the run ended: {status}" + (f": {error}" if error else "")
        yield Moment(meta.time("completedAt"), (_LAST + 1, 0), Text(text, "bold green" if good else "bold red"))


def _of_events(events: Iterable[Fields]) -> Iterator[Moment]:
    for event in events:
        text = _of_engine(event) or _came(event)
        if event.time("deliveredAt") is None:
            text += " (not taken yet)"
        yield Moment(event.time("createdAt"), (_FIRST, 0), Text(text, "magenta"))


def _came(event: Fields) -> str:
    sender, taker = one_line(event.text("sender")), one_line(event.text("consumedByStepKey"))
    origin = f" from {sender}" if sender else ""
    text = f"event {one_line(event.text('type'))} came{origin}" + _value(event.any("payload"))
    return f"{text} (taken by {taker})" if taker else text


def _of_engine(event: Fields) -> str | None:
    """An event that the engine itself sent, in words."""
    kind, payload, sender = event.text("type"), event.fields("payload"), one_line(event.text("sender"))
    if kind == "@cancel":
        reason, deadline = one_line(payload.text("reason")), payload.number("deadlineMs")
        within = "" if deadline is None else f" within {_described(deadline)}"
        return f"{sender or 'somebody'} asked the run to cancel{within}" + (f": {reason}" if reason else "")
    if kind == "@exit" and sender:
        error = error_text(payload.fields("error")) or one_line(payload.text("note"))
        return f"{sender} ended: {one_line(payload.text('status'))}" + (f": {error}" if error else "")
    if kind == "@reply" and sender:
        return f"{sender} {'answered' if payload.true('ok') else 'refused'}{_value(payload.any('value'))}"
    return None


def _of_logs(logs: Iterable[Fields], steps: list[Fields]) -> Iterator[Moment]:
    numbers = {step.text("stepKey"): number for number, step in enumerate(steps)}
    for log in logs:
        text = Text("log ", "dim").append_text(log_line(log, time=False))
        yield Moment(log.time("createdAt"), (numbers.get(log.text("stepKey"), _LAST), 1), text)


def _of_step(number: int, step: Fields) -> Iterator[Moment]:
    if "stepSeq" in step:
        yield _of_chain(number, step)
        return
    if "state" in step:
        yield from _of_node(number, step)
        return
    if step.text("status") == "pending" and not step.number("attempts"):
        yield Moment(None, (number, 0), Text(f"{step_name(step)} is still to come", "dim"))
        return
    if step.text("type") not in _LASTING and step.text("status") == "completed":
        outcome = brief(step.any("result")) if step.text("type") == "version" else "done"
        yield Moment(step.time("createdAt"), (number, 0), Text(f"{step_name(step)}: {outcome}", "green"))
        return
    yield Moment(step.time("createdAt"), (number, 0), Text(_beginning(step)))
    end = _end(step)
    if end is not None:
        yield Moment(step.time("updatedAt"), (number, 2), end)


def _of_chain(number: int, step: Fields) -> Moment:
    """All steps of a chain are there from its start, each in one state; what is under way has no time of its own."""
    state = step.text("state")
    text = Text(f"{step_name(step)}: ").append_text(coloured(state))
    if state == "PENDING" or (state in ("READY", "RUNNING") and step.time("nextRetryAt") is None):
        return Moment(None, (number, 0), text.append(_failures(step)))
    if state == "WAITING":
        text.append(f" for an event of type {one_line(step.text('waitEventType'))}{_until(step)}")
    text.append(_failures(step))
    if step.time("nextRetryAt") is not None:
        text.append(f"; tries again at {when(step.time('nextRetryAt'))}")
    return Moment(step.time("updatedAt"), (number, 2), text.append(_value(step.any("result"))))


def _failures(step: Fields) -> str:
    attempts, most = step.number("attempts"), step.number("maxAttempts")
    error = error_text(step.fields("error"))
    failed = f", {attempts} of {most} attempts failed" if attempts else ""
    return failed + (f": {error}" if error else "")


def _of_node(number: int, step: Fields) -> Iterator[Moment]:
    """A node of a graph: when it was started first, and what has come of it."""
    state, attempts = step.text("state"), step.number("attempts") or 0
    text = Text(f"{step_name(step)}: ").append_text(coloured(state))
    if state == "pending":
        yield Moment(None, (number, 0), text)
        return
    if attempts and state != "skipped":
        yield Moment(step.time("createdAt"), (number, 0), Text(f"{step_name(step)} started"))
    if state == "started":
        if attempts > 1:
            yield Moment(step.time("updatedAt"), (number, 2), text.append(f" again{_attempt(step)}"))
        return
    if state == "ok":
        text.append(_duration(step))
    error = error_text(step.fields("error"))
    text.append(f"{_attempt(step)}: {error}" if error else _value(step.any("result")))
    if step.time("nextRetryAt") is not None:
        text.append(f"; tries again at {when(step.time('nextRetryAt'))}")
    yield Moment(step.time("updatedAt"), (number, 2), text)


def _beginning(step: Fields) -> str:
    name, kind = step_name(step), step.text("type")
    if kind == "sleep":
        return f"{name}: sleeps{_until(step)}"
    if kind == "waitForEvent":
        return f"{name}: waits for an event of type {one_line(step.text('waitEventType'))}{_until(step)}"
    return f"{name} began"


def _until(step: Fields) -> str:
    at = step.time("wakeAt")
    return f" until {when(at)}" if at is not None else ""


def _end(step: Fields) -> Text | None:
    status = step.text("status")
    if status == "completed":
        return Text(_completion(step), "green")
    if status == "errored":
        return Text(f"{step_name(step)} failed{_attempt(step)}: {error_text(step.fields('error'))}", "red")
    if step.time("nextRetryAt") is not None:
        retry = f"; tries again at {when(step.time('nextRetryAt'))}"
        return Text(f"{step_name(step)} failed{_attempt(step)}: {error_text(step.fields('error'))}{retry}", "yellow")
    if (step.number("attempts") or 0) > 1:
        return Text(f"{step_name(step)} runs again{_attempt(step)}", "cyan")
    return None


def _completion(step: Fields) -> str:
    if step.text("type") == "sleep":
        return f"{step_name(step)}: slept"
    if step.text("type") == "waitForEvent":
        return f"{step_name(step)}: got its event"
    return f"{step_name(step)} completed{_attempt(step)}{_duration(step)}{_value(step.any('result'))}"


def _attempt(step: Fields) -> str:
    """Which attempt it was, unless it was the first and only one."""
    attempts, most = step.number("attempts"), step.number("maxAttempts")
    if step.text("type") in ("sleep", "waitForEvent") or not attempts:
        return ""
    if attempts == 1 and step.text("status") == "completed":
        return ""
    return f" on attempt {attempts}" + (f" of {most}" if most is not None else "")


def _duration(step: Fields) -> str:
    began, ended = step.time("createdAt"), step.time("updatedAt")
    if began is None or ended is None or ended < began:
        return ""
    return f" after {_described((ended - began) // _MILLISECOND)}"


def _described(milliseconds: int) -> str:
    from holdfast.core.durations import describe  # noqa: PLC0415

    return describe(milliseconds)


def _value(value: object) -> str:
    return "" if value is None else f": {brief(value)}"
