"""Log lines about failures of runs: one line, with the traceback, for each failure that needs attention.

The logger is ``holdfast.runs``, so that it can be configured apart from lines about the engine and the store. ERROR: a
run ended with an error, or is parked until it is resumed. WARNING: the failure is handled elsewhere; the workflow may
handle a failed step, a failed run is retried, a failed child is reported to its parent. A line is written after the
commit, so the failure that it reports is durable. Each record has the fields ``workflow``, ``instance_id``,
``run_number`` and ``step_key``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.core.failure import Failure
from holdfast.core.model import Status, StepType
from holdfast.store.protocol import Commit, Committed, Fact, FactState, Finish, Park, RunRecord, Verdict

_log = logging.getLogger("holdfast.runs")
_WRITTEN = (Verdict.APPLIED, Verdict.PAUSING, Verdict.PAUSED)
_STEPS = (StepType.DO, StepType.NODE)
_MAX_LINE_LENGTH = 500
_ESCAPED_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Blocker(NamedTuple):
    """The code that blocks the event loop."""

    name: str
    advice: str
    pid: str | None = None
    step: str | None = None


def named(run: RunRecord) -> str:
    return f"{run.pid} (run {run.number})"


def committed(run: RunRecord, commit: Commit, result: Committed) -> None:
    """Log the failures that a commit made durable."""
    if result.verdict not in _WRITTEN:
        return
    failed = [fact for fact in commit.observed.facts if not fact.ok and _is_step_result(fact)]
    end = commit.following.next if result.verdict is Verdict.APPLIED else None
    if isinstance(end, Finish) and end.status is Status.ERRORED:
        ended(run, end, failed)
        return
    steps_failed(run, failed)
    if isinstance(end, Park):
        parked(run, end.note)


def has_failed(commit: Commit) -> bool:
    """True if the commit has the failure of a step or of an attempt."""
    for fact in commit.observed.facts:  # noqa: SIM110  (called for every commit: a generator expression takes twice the time)
        if not fact.ok:
            return True
    return False


def ended(run: RunRecord, finish: Finish, steps: Sequence[Fact] = ()) -> None:
    """Log the end of a run that errored. ``steps``: results of steps that failed in the same commit."""
    if finish.status is not Status.ERRORED or finish.error is None:
        return
    error = Failure.decode(finish.error)
    clauses = [_brief(error), *(_step_clause(fact, error) for fact in steps)]
    level = logging.ERROR
    if finish.next is not None and finish.next.attempt > 1:
        level = logging.WARNING
        clauses.append(f"it is tried again as run {run.number + 1}, attempt {finish.next.attempt}")
    elif run.parent is not None:
        level = logging.WARNING
        clauses.append(f"its parent {run.parent} is notified")
    _write(level, f"run {named(run)} errored: {'; '.join(clauses)}", run, steps[0].key if steps else None, error)


def steps_failed(run: RunRecord, results: Iterable[Fact]) -> None:
    """Log steps, or nodes of a graph, that failed and are not retried."""
    for fact in results:
        if not fact.ok and _is_step_result(fact):
            error = Failure.decode(fact.value or b"{}")
            failed = f"failed permanently on attempt {fact.attempts}: {_brief(error)}"
            _write(logging.WARNING, f"step {fact.key!r} of run {named(run)} {failed}", run, fact.key, error)


def parked(run: RunRecord, note: str) -> None:
    _write(logging.ERROR, f"run {named(run)} is parked: {_one_line(note)}", run)


def stalled(blocker: Blocker, seconds: float, stack: str | None) -> None:
    """Log a call that blocks the event loop, and with it every run of the worker."""
    text = f"the event loop has been blocked for more than {seconds:g} s by {blocker.name}; {blocker.advice}"
    _log.warning("%s\n%s", text, _escape(stack or "  (no stack)"), extra=_fields(blocker.pid, None, blocker.step))


def _write(level: int, text: str, run: RunRecord, step: str | None = None, error: Failure | None = None) -> None:
    if not _log.isEnabledFor(level):
        return
    fields = _fields(run.pid, run.number, step)
    shown = None if error is None or error.traceback is None else _clean(error).as_noted_exception(f"run {run.pid}")
    _log.log(level, "%s", text, extra=fields, exc_info=None if shown is None else (type(shown), shown, None))


def _fields(pid: str | None, run_number: int | None, step: str | None) -> dict[str, Any]:
    workflow, _, instance_id = (pid or "").partition("/")
    return {
        "workflow": workflow or None,
        "instance_id": instance_id or None,
        "run_number": run_number,
        "step_key": step,
    }


def _is_step_result(fact: Fact) -> bool:
    return fact.state == FactState.RESULT and fact.kind in _STEPS and fact.value is not None


def _step_clause(fact: Fact, of_run: Failure) -> str:
    error = Failure.decode(fact.value or b"{}")
    same = (error.name, error.message) == (of_run.name, of_run.message)
    return f"step {fact.key!r} failed permanently on attempt {fact.attempts}" + ("" if same else f" ({_brief(error)})")


def _brief(error: Failure) -> str:
    return _one_line(f"{error.name}: {error.message}" if error.message else error.name)


def _clean(error: Failure) -> Failure:
    """The error with its texts escaped for any log stream; the same object if nothing has to be escaped."""
    message, traceback = _escape(error.message), _escape(error.traceback or "")
    if (message, traceback) == (error.message, error.traceback):
        return error
    return replace(error, message=message, traceback=traceback, args=[message], exceptions=(), cause=None)


def _escape(text: str) -> str:
    """Escape control characters, and lone surrogates, which no stream can encode."""
    return _ESCAPED_CHARACTERS.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def _one_line(text: str) -> str:
    line = _escape(" ".join(text.split()))
    return line if len(line) <= _MAX_LINE_LENGTH else line[: _MAX_LINE_LENGTH - 1] + "…"
