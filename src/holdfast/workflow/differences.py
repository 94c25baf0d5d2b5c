"""Differences between the history of an open run and the code: what the run would do on this code.

The machine replays the complete history and decides as it does in a turn, at the time of the last fact. The decision
says whether the run would be parked, which steps it would call and how it would end. The keys that the code has
requested say which recorded results it does not use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.core import codec
from holdfast.core.facts import RESOLVE, Fact, FactState
from holdfast.core.failure import Failure
from holdfast.core.model import Status, StepType
from holdfast.core.origin import Origin
from holdfast.core.show import shown
from holdfast.errors import LinkDownError, StepError, WaitForEventTimeoutError
from holdfast.kernel.driver import Decision
from holdfast.kernel.inspection import Difference, DifferenceKind, Subject
from holdfast.store.protocol import Finish, Park, RunRecord
from holdfast.workflow.keys import ANONYMOUS
from holdfast.workflow.machine import Machine, MachineParts
from holdfast.workflow.naming import StepNames
from holdfast.workflow.pending import PendingWait

_UNCOUNTED = {StepType.TIMER, StepType.MESSAGE, StepType.WATCH, StepType.NOTE, StepType.VERSION}
"""Kinds of facts that the code does not request by a key of its own."""
_PARK_PREFIX = "NON_DETERMINISTIC: "
_RECORDED_ERRORS = (StepError, WaitForEventTimeoutError, LinkDownError, asyncio.CancelledError)
"""Errors that come from the history."""


def find_differences(machine: Machine, names: StepNames, subject: Subject) -> list[Difference]:
    facts = subject.snapshot.facts
    started_at = subject.run.started_at
    results = [fact for fact in facts if fact.seq is not None]
    decision = machine.advance(subject.now_ms if started_at is None else max([started_at, *(f.at for f in results)]))
    if isinstance(decision.end, Park):
        kind = DifferenceKind.VALUE if machine.execution.value_unfit else DifferenceKind.PARKED
        return [Difference(kind, decision.end.note.removeprefix(_PARK_PREFIX))]
    repaired = _repaired_at(subject.run, results)
    expected = [fact for fact in results if not _may_stay_unused(fact, repaired)]
    found = list(_unused_results(machine.parts(), decision, expected, names))
    if subject.run.status.terminal:
        return found or list(_other_end(machine.parts(), decision, subject.run))
    found += _failure(machine, decision)
    if not decision.calls and not decision.following.operations and decision.end is None:
        found += _other_waits(machine.parts(), decision, facts)
    return found


# --- results that the code does not use


def _unused_results(
    parts: MachineParts, decision: Decision, results: Iterable[Fact], names: StepNames
) -> Iterator[Difference]:
    unused = [fact for fact in results if not _is_used(fact, parts) and not names.declares(_name(fact))]
    if not unused:
        return
    recorded = {fact.key for fact in results}
    new = [f"step {call.key!r}" for call in decision.calls if call.key not in recorded]
    new += [f"{one.fact.kind} {one.fact.name!r}" for one in decision.following.operations]
    shown = ", ".join(map(_what, unused))
    if new:
        yield Difference(
            DifferenceKind.STEP,
            f"the history has {shown}, which the code has not requested when it requests {', '.join(new)}, without a "
            "record. If a step was renamed, declare it with @app.step(renamed_from=...); if it was removed on "
            "purpose, with app.retired_steps(...)",
        )
    else:
        yield Difference(
            DifferenceKind.UNUSED,
            f"the history has {shown}, which the code does not request any more. If it was removed on purpose, declare "
            "it with app.retired_steps(...)",
        )


class _Repaired(NamedTuple):
    """The position of the first result that a repair dropped or replaced, and the time of the repair."""

    seq: int
    at: int


def _repaired_at(run: RunRecord, results: Iterable[Fact]) -> _Repaired | None:
    """The place at which the history of a repaired run may leave the course of its origin.

    Positions are consecutive, so a position that is missing before the repair is that of the failure which it dropped.
    """
    if run.origin is None:
        return None
    at = Origin.decode(run.origin).at
    copied = {fact.seq: fact for fact in results if fact.seq is not None and fact.at <= at}
    changed = [seq for seq, fact in copied.items() if fact.event_type == RESOLVE]
    missing = [seq for seq in range(1, max(copied, default=0)) if seq not in copied]
    return _Repaired(min([*changed, *missing]), at) if changed or missing else None


def _may_stay_unused(fact: Fact, repaired: _Repaired | None) -> bool:
    """True for a result that the origin recorded after its failure, such as that of a compensation."""
    return repaired is not None and fact.at <= repaired.at and (fact.seq or 0) > repaired.seq


def _is_used(fact: Fact, parts: MachineParts) -> bool:
    if fact.kind in _UNCOUNTED:
        return True
    if fact.key.startswith(ANONYMOUS):
        return parts.operations.is_requested(fact.key)
    return parts.keys.is_used(fact.key)


def _name(fact: Fact) -> str:
    """The name by which a fact can be declared as retired: that of the step, the sleep, the wait or the child."""
    if fact.key.startswith(ANONYMOUS):
        return fact.key.partition(" ")[2].partition("#")[0]
    return fact.name or fact.key


_NOUNS = {StepType.DO: "a result of step", StepType.SLEEP: "the end of sleep", StepType.WAIT: "an event for wait"}


def _what(fact: Fact) -> str:
    noun = _NOUNS.get(StepType(fact.kind))
    return f"{noun} {fact.key!r}" if noun is not None else f"{fact.kind} {fact.name or _name(fact)!r}"


# --- other consequences


def _failure(machine: Machine, decision: Decision) -> Iterator[Difference]:
    """The error that the code raises, unless a recorded failure causes it."""
    end = decision.end
    if not isinstance(end, Finish) or end.status is not Status.ERRORED or end.error is None:
        return
    error = machine.execution.error
    if error is not None and _is_recorded(error):
        return
    yield Difference(DifferenceKind.FAILED, f"the code raises {_error(end)}")


def _other_end(parts: MachineParts, decision: Decision, run: RunRecord) -> Iterator[Difference]:
    """The end of the code, if it is not the recorded one. A run may have been ended from outside, while its code
    waited."""
    end = decision.end if isinstance(decision.end, Finish) else None
    if run.status is Status.COMPLETE and end is None:
        waits = ", ".join(repr(pending.key) for pending in parts.keys.pending.values()) or "something else"
        yield Difference(DifferenceKind.END, f"the run is complete, and the code requests {waits}")
    elif run.status is Status.COMPLETE and end is not None:
        if end.status is not Status.COMPLETE:
            yield Difference(DifferenceKind.END, f"the run is complete, and the code raises {_error(end)}")
        elif end.output != run.output:
            recorded, returned = shown(codec.plain(run.output)), shown(codec.plain(end.output))
            yield Difference(DifferenceKind.END, f"the run returned {recorded}, and the code returns {returned}")
    elif run.status is Status.ERRORED and end is not None and run.error is not None:
        recorded = Failure.decode(run.error).name
        if end.error is None or Failure.decode(end.error).name != recorded:
            now = "ends without an error" if end.error is None else f"raises {_error(end)}"
            yield Difference(DifferenceKind.END, f"the run failed with {recorded}, and the code {now}")


def _error(end: Finish) -> str:
    failure = Failure.decode(end.error or b"{}")
    return f"{failure.name}: {failure.message}"


def _is_recorded(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_recorded(inner) for inner in error.exceptions)
    return any(isinstance(one, _RECORDED_ERRORS) for one in (error, error.__cause__, error.__context__))


def _other_waits(parts: MachineParts, decision: Decision, facts: Iterable[Fact]) -> Iterator[Difference]:
    """Open waits of the run that the code does not have, while the code waits for something else.

    Only the next turn stores what the code waits for. Until then, events of other types do not wake the run. A wait
    whose deadline has passed ends with the next turn.
    """
    waits = [pending for pending in parts.keys.pending.values() if isinstance(pending, PendingWait)]
    awaited = {(wait.key, wait.event_type) for wait in waits}
    other = ", ".join(f"{wait.event_type!r} in {wait.key!r}" for wait in waits if wait.event_type is not None)
    ended = {fact.key for fact in decision.observed.facts if fact.state == FactState.RESULT}
    for start in _open_waits(facts):
        if (start.key, start.event_type) not in awaited and start.key not in ended:
            code = f"for an event of type {other}" if other else "for something else"
            yield Difference(
                DifferenceKind.WAIT,
                f"the run waits for an event of type {start.event_type!r} in {start.key!r}, and the code waits {code}; "
                "such an event does not wake the run before the recorded wait ends. After the deployment, pause and "
                "resume the run: it then waits for what the code waits for",
            )


def _open_waits(facts: Iterable[Fact]) -> list[Fact]:
    """The START facts of event waits that have neither a result nor a cancellation."""
    facts = [fact for fact in facts if fact.kind == StepType.WAIT]
    results = {fact.key for fact in facts if fact.state == FactState.RESULT}
    cancelled = {(fact.key, fact.n) for fact in facts if fact.state == FactState.FAILURE}
    return [
        fact
        for fact in facts
        if fact.state == FactState.START and fact.key not in results and (fact.key, fact.n + 1) not in cancelled
    ]
