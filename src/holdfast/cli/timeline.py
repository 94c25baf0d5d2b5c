"""The history of a run as a timeline: its steps, events and log lines in chronological order.

The server returns three separate lists, whose items have times; this module merges them into one list of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from textwrap import indent

from rich.text import Text

from holdfast.cli.output import coloured, error_text, log_line, short_json, step_name, timestamp, traceback_text
from holdfast.cli.response_fields import Fields
from holdfast.cli.terminal_text import one_line

_FUTURE = datetime.max.replace(tzinfo=UTC)
_FIRST, _LAST = -1, 1_000_000
_ORIGINS = {"retry": "retried", "fork": "forked", "resolve": "continues with a step that was resolved"}
_MILLISECOND = timedelta(milliseconds=1)
_WITH_DURATION = ("do", "sleep", "waitForEvent", "child", "ask")
"""Types of steps that have a start and an end. Steps of other types are operations, which take no time."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of a timeline. ``rank`` orders entries of the same millisecond; an entry in the future has no time."""

    at: datetime | None
    rank: tuple[int, int]
    text: Text

    @property
    def order(self) -> tuple[datetime, tuple[int, int]]:
        return self.at or _FUTURE, self.rank


def timeline(
    steps: list[Fields],
    events: list[Fields],
    logs: list[Fields],
    run: Fields | None,
    *,
    origin: Fields | None = None,
    full: bool = False,
) -> list[TimelineEntry]:
    """All entries in chronological order.

    ``run`` is the description of the instance, or None if the timeline is not that of its current run. With ``full``,
    errors have their tracebacks.
    """
    entries = [*_event_entries(events), *_log_entries(logs, steps)]
    if origin:
        entries.append(TimelineEntry(origin.time("at"), (_FIRST - 1, 0), Text(origin_text(origin), "bold")))
    for number, step in enumerate(steps):
        entries += _with_traceback(_step_entries(number, step), step, full)
    if run is not None:
        entries += _with_traceback(_run_entries(run), run.fields("details"), full)
    return sorted(entries, key=lambda entry: entry.order)


def _with_traceback(entries: Iterable[TimelineEntry], subject: Fields, full: bool) -> list[TimelineEntry]:
    """The entries of a step or a run. If it failed, the last entry has the traceback."""
    listed, traceback = [*entries], traceback_text(subject.fields("error"))
    if full and listed and traceback:
        listed[-1].text.append("\n" + indent(traceback, " " * 4))
    return listed


def _run_entries(run: Fields) -> Iterator[TimelineEntry]:
    meta, details = run.fields("meta"), run.fields("details")
    if meta.time("startedAt") is not None:
        yield TimelineEntry(meta.time("startedAt"), (_FIRST - 1, 0), Text("the run began"))
    if meta.time("completedAt") is not None:
        status, error = one_line(details.text("status")), error_text(details.fields("error"))
        succeeded = status == "complete"
        text = f"the run ended: {status}" + (f": {error}" if error else "")
        style = "bold green" if succeeded else "bold red"
        yield TimelineEntry(meta.time("completedAt"), (_LAST + 1, 0), Text(text, style))


def origin_text(origin: Fields) -> str:
    """The request from which a run comes: ``retried by ann after run 0: the bank is open``."""
    verb = _ORIGINS.get(origin.text("action"), origin.text("action"))
    number, pid = origin.number("runNumber") or 0, one_line(origin.text("pid"))
    source = f" from {pid}, run {number}" if origin.text("action") == "fork" else f" after run {number}"
    actor = f" by {one_line(origin.text('actor'))}" if origin.text("actor") else ""
    reason = f": {one_line(origin.text('reason'))}" if origin.text("reason") else ""
    return f"{verb}{actor}{source}{reason}"


def _event_entries(events: Iterable[Fields]) -> Iterator[TimelineEntry]:
    for event in events:
        text = _engine_event_text(event) or _event_text(event)
        if event.time("deliveredAt") is None:
            text += " (not delivered yet)"
        yield TimelineEntry(event.time("createdAt"), (_FIRST, 0), Text(text, "magenta"))


def _event_text(event: Fields) -> str:
    sender, step = one_line(event.text("sender")), one_line(event.text("consumedByStepKey"))
    origin = f" from {sender}" if sender else ""
    text = f"event {one_line(event.text('type'))} received{origin}" + _value(event.any("payload"))
    return f"{text} (delivered to {step})" if step else text


def _engine_event_text(event: Fields) -> str | None:
    """The text of an event that the engine sent; None for other events."""
    event_type, payload, sender = event.text("type"), event.fields("payload"), one_line(event.text("sender"))
    if event_type == "@cancel":
        reason, deadline = one_line(payload.text("reason")), payload.number("deadlineMs")
        origin = f" by {sender}" if sender else ""
        within = "" if deadline is None else f" within {_described(deadline)}"
        return f"cancellation requested{origin}{within}" + (f": {reason}" if reason else "")
    if event_type == "@exit" and sender:
        error = error_text(payload.fields("error")) or one_line(payload.text("note"))
        return f"{sender} ended: {one_line(payload.text('status'))}" + (f": {error}" if error else "")
    if event_type == "@reply" and sender:
        return f"{sender} {'replied' if payload.true('ok') else 'rejected the ask'}{_value(payload.any('value'))}"
    return None


def _log_entries(logs: Iterable[Fields], steps: list[Fields]) -> Iterator[TimelineEntry]:
    numbers = {step.text("stepKey"): number for number, step in enumerate(steps)}
    begun: dict[datetime | None, int] = {}
    """The first step that began in a millisecond and did not end in it: a line of the workflow comes before it."""
    for index, step in reversed([*enumerate(steps)]):
        if step.time("createdAt") != step.time("updatedAt"):
            begun[step.time("createdAt")] = index
    for log in logs:
        text, at = Text("log ", "dim").append_text(log_line(log, time=False)), log.time("createdAt")
        number = numbers.get(log.text("stepKey"))
        before = (begun[at], -1) if at in begun else (_LAST, 1)
        yield TimelineEntry(at, before if number is None else (number, 1), text)


def _step_entries(number: int, step: Fields) -> Iterator[TimelineEntry]:
    if "stepSeq" in step:
        yield _chain_step_entry(number, step)
        return
    if "state" in step:
        yield from _node_entries(number, step)
        return
    if step.text("status") == "pending" and not step.number("attempts"):
        yield TimelineEntry(None, (number, 0), Text(f"{step_name(step)} has not begun", "dim"))
        return
    if step.text("type") not in _WITH_DURATION and step.text("status") == "completed":
        outcome = short_json(step.any("result")) if step.text("type") == "version" else "done"
        yield TimelineEntry(step.time("createdAt"), (number, 0), Text(f"{step_name(step)}: {outcome}", "green"))
        return
    yield TimelineEntry(step.time("createdAt"), (number, 0), Text(_start_text(step)))
    end = _end_text(step)
    if end is not None:
        yield TimelineEntry(step.time("updatedAt"), (number, 2), end)


def _chain_step_entry(number: int, step: Fields) -> TimelineEntry:
    """The state of a chain's step. The steps exist from the start of the run; a pending or running one has no time."""
    state = step.text("state")
    text = Text(f"{step_name(step)}: ").append_text(coloured(state))
    if state == "PENDING" or (state in ("READY", "RUNNING") and step.time("nextRetryAt") is None):
        return TimelineEntry(None, (number, 0), text.append(_failures(step)))
    if state == "WAITING":
        text.append(f" for an event of type {one_line(step.text('waitEventType'))}{_until(step)}")
    text.append(_failures(step))
    if step.time("nextRetryAt") is not None:
        text.append(f"; tries again at {timestamp(step.time('nextRetryAt'))}")
    return TimelineEntry(step.time("updatedAt"), (number, 2), text.append(_value(step.any("result"))))


def _failures(step: Fields) -> str:
    attempts, limit = step.number("attempts"), step.number("maxAttempts")
    error = error_text(step.fields("error"))
    failed = f", {attempts} of {limit} attempts failed" if attempts else ""
    return failed + (f": {error}" if error else "")


def _node_entries(number: int, step: Fields) -> Iterator[TimelineEntry]:
    """The first start of a graph's node, and its state."""
    state, attempts = step.text("state"), step.number("attempts") or 0
    text = Text(f"{step_name(step)}: ").append_text(coloured(state))
    if state == "pending":
        yield TimelineEntry(None, (number, 0), text)
        return
    if attempts and state != "skipped":
        yield TimelineEntry(step.time("createdAt"), (number, 0), Text(f"{step_name(step)} started"))
    if state == "started":
        if attempts > 1:
            yield TimelineEntry(step.time("updatedAt"), (number, 2), text.append(f" again{_attempt(step)}"))
        return
    if state == "ok":
        text.append(_duration(step))
    error = error_text(step.fields("error"))
    text.append(f"{_attempt(step)}: {error}" if error else _value(step.any("result")))
    if step.time("nextRetryAt") is not None:
        text.append(f"; tries again at {timestamp(step.time('nextRetryAt'))}")
    yield TimelineEntry(step.time("updatedAt"), (number, 2), text)


def _start_text(step: Fields) -> str:
    name, step_type = step_name(step), step.text("type")
    if step_type == "sleep":
        return f"{name}: sleeps{_until(step)}"
    if step_type == "waitForEvent":
        return f"{name}: waits for an event of type {one_line(step.text('waitEventType'))}{_until(step)}"
    return f"{name} began"


def _until(step: Fields) -> str:
    at = step.time("wakeAt")
    return f" until {timestamp(at)}" if at is not None else ""


def _end_text(step: Fields) -> Text | None:
    status = step.text("status")
    if status == "completed":
        return Text(_completion_text(step), "green")
    if status == "errored":
        return Text(f"{step_name(step)} failed{_attempt(step)}: {error_text(step.fields('error'))}", "red")
    if step.time("nextRetryAt") is not None:
        retry = f"; tries again at {timestamp(step.time('nextRetryAt'))}"
        return Text(f"{step_name(step)} failed{_attempt(step)}: {error_text(step.fields('error'))}{retry}", "yellow")
    if (step.number("attempts") or 0) > 1:
        return Text(f"{step_name(step)} runs again{_attempt(step)}", "cyan")
    return None


def _completion_text(step: Fields) -> str:
    if step.text("type") == "sleep":
        return f"{step_name(step)}: slept"
    if step.text("type") == "waitForEvent":
        return f"{step_name(step)}: received its event"
    return f"{step_name(step)} completed{_attempt(step)}{_duration(step)}{_value(step.any('result'))}"


def _attempt(step: Fields) -> str:
    """The number of the attempt; empty for a step that completed on its first attempt."""
    attempts, limit = step.number("attempts"), step.number("maxAttempts")
    if step.text("type") in ("sleep", "waitForEvent") or not attempts:
        return ""
    if attempts == 1 and step.text("status") == "completed":
        return ""
    return f" on attempt {attempts}" + (f" of {limit}" if limit is not None else "")


def _duration(step: Fields) -> str:
    began, ended = step.time("createdAt"), step.time("updatedAt")
    if began is None or ended is None or ended < began:
        return ""
    return f" after {_described((ended - began) // _MILLISECOND)}"


def _described(milliseconds: int) -> str:
    from holdfast.core.durations import describe

    return describe(milliseconds)


def _value(value: object) -> str:
    return "" if value is None else f": {short_json(value)}"
