"""The history with which a retried, resolved or forked run of a workflow continues."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.facts import CANCEL, EXIT, Fact, FactState, Watch
from holdfast.core.model import StepType
from holdfast.kernel.model import RecordedRun
from holdfast.kernel.repair import Continuation, RepairRules, Resolution, not_failed, replaced, unknown_step

_ATTEMPT_STATES = (FactState.FAILURE, FactState.START, FactState.HEARTBEAT)
_UNDOES = {StepType.UNMONITOR: StepType.MONITOR, StepType.UNLINK: StepType.LINK}
_WATCH_KINDS = {StepType.MONITOR: Watch.MONITOR, StepType.LINK: Watch.LINK}


class WorkflowRepairRules(RepairRules):
    def retry(self, run: RecordedRun, now: int, resolution: Resolution | None = None) -> Continuation:
        failed = _failed_keys(run)
        if resolution is not None and resolution.step not in failed:
            raise not_failed(run, resolution.step, failed)
        dropped = failed | _link_failure(run)
        done = {fact.key for fact in run.facts if fact.state == FactState.RESULT} - dropped
        facts = [fact for fact in run.facts if _survives(fact, done, dropped)]
        facts += _waits_again(run, dropped, now)
        if resolution is not None:
            [old] = [f for f in run.facts if f.state == FactState.RESULT and f.key == resolution.step]
            facts.append(resolution.result(old))
        children = _open_children(facts)
        facts = _without_cancels(facts, children, _first_seq(run, dropped))
        return Continuation(facts, children=children, watches=_watches(facts, children))

    def fork(self, run: RecordedRun, before: str, outputs: Mapping[str, bytes]) -> Continuation:
        own = [fact for fact in run.facts if fact.key == before and fact.state != FactState.PLAN]
        if not own:
            raise unknown_step(run, before, _step_keys(run.facts))
        began = min(fact.started_at for fact in own)
        cut = next((f.seq for f in own if f.state == FactState.RESULT and f.seq is not None), _cancelled_at(run, began))
        last = _last_time(run, cut)
        done = {fact.key for fact in run.facts if fact.state == FactState.RESULT and _is_before(fact, cut, last)}
        done.discard(before)
        facts = [fact for fact in run.facts if _is_kept(fact, done, cut, began, before)]
        facts = replaced(run, facts, outputs, StepType.DO)
        return Continuation(facts, watches=_watches(facts, _open_children(facts)))


def _failed_keys(run: RecordedRun) -> set[str]:
    """Keys of the results that ended the run with an error: steps, waits and children."""
    error = json.loads(run.row.error or b"{}")
    names = {*error.get("steps", ())}
    failed = [fact for fact in run.facts if fact.state == FactState.RESULT and not fact.ok]
    return {fact.key for fact in failed if fact.key in names or (fact.kind == StepType.CHILD and fact.name in names)}


def _link_failure(run: RecordedRun) -> set[str]:
    """The key of the exit event that ended the run by a link, and those of the failed children that are linked.

    The end of such a child may be recorded as the result of the child before the link takes effect.
    """
    if json.loads(run.row.error or b"{}").get("name") != "LinkDownError":
        return set()
    exits = [fact for fact in run.facts if fact.event_type == EXIT and fact.kind == StepType.MESSAGE]
    linked = {pid for pid, watch in _requested_watches(run.facts).items() if watch & Watch.LINK}
    failed = [
        fact for fact in run.facts if fact.kind == StepType.CHILD and fact.state == FactState.RESULT and not fact.ok
    ]
    last = {max(exits, key=lambda fact: fact.seq or 0).key} if exits else set()
    return last | {fact.key for fact in failed if fact.name in linked}


def _survives(fact: Fact, done: set[str], dropped: set[str]) -> bool:
    if fact.state == FactState.PLAN:
        return False
    if fact.key in dropped:  # the start of a child stays: the child itself continues
        return fact.kind == StepType.CHILD and fact.state == FactState.START
    if fact.kind == StepType.DO and fact.key not in done:
        return fact.state not in _ATTEMPT_STATES  # fresh attempts
    return True


def _first_seq(run: RecordedRun, keys: set[str]) -> float:
    """The position of the first result under one of these keys."""
    results = [fact.seq for fact in run.facts if fact.key in keys and fact.state == FactState.RESULT]
    return min((seq for seq in results if seq is not None), default=math.inf)


def _without_cancels(facts: Iterable[Fact], children: Sequence[str], failed: float) -> list[Fact]:
    """The facts without the cancellations of children that the failure at this position caused: the children continue.

    A retry that fails again would otherwise use the recorded cancellation and leave the child running.
    """
    return [
        fact
        for fact in facts
        if fact.kind != StepType.CANCEL or fact.name not in children or fact.seq is None or fact.seq < failed
    ]


def _waits_again(run: RecordedRun, dropped: set[str], now: int) -> list[Fact]:
    """START facts of the waits that timed out: each waits again, as long as before, from now on."""
    timeouts = [f for f in run.facts if f.key in dropped and f.state == FactState.RESULT and f.kind == StepType.WAIT]
    return [
        fact._replace(state=FactState.START, n=0, at=now, started_at=now, seq=None, ok=True, value=None, event=None,
                      wake_at=now + max(0, (fact.wake_at or now) - fact.started_at))
        for fact in timeouts
    ]  # fmt: skip


def _cancelled_at(run: RecordedRun, began: int) -> float:
    """The position of the cancel request that interrupted a step without a result. The fork does not receive it."""
    requests = [f for f in run.facts if f.kind == StepType.MESSAGE and f.event_type == CANCEL and f.at >= began]
    return min((fact.seq for fact in requests if fact.seq is not None), default=math.inf)


def _last_time(run: RecordedRun, cut: float) -> int:
    """The time of the code after the last result before this position."""
    return max([run.row.started_at or 0, *(f.at for f in run.facts if f.seq is not None and f.seq < cut)])


def _is_before(fact: Fact, cut: float, last: int) -> bool:
    """True if a result was recorded before the cut. ``last``: the time of the last result that the code received.

    Versions have no position. Their time is that of the result after which the code requested them, so a version that
    the results before the cut depend on is not later than the last of these results.
    """
    return fact.seq < cut if fact.seq is not None else fact.at <= last


def _is_kept(fact: Fact, done: set[str], cut: float, began: int, before: str) -> bool:
    if fact.state == FactState.PLAN or fact.key == before:
        return False
    if fact.seq is not None:
        return fact.seq < cut
    if fact.key in done:
        return True
    # A wait that began in the same millisecond may follow a result after the cut; without a record it begins again.
    return fact.kind != StepType.DO and fact.state != FactState.RESULT and fact.at < began


def _open_children(facts: Iterable[Fact]) -> list[str]:
    """Pids of the children that were started and have no recorded end."""
    facts = list(facts)
    ended = {fact.key for fact in facts if fact.state == FactState.RESULT}
    started = [f for f in facts if f.kind == StepType.CHILD and f.state == FactState.START and f.ok]
    return [fact.name for fact in started if fact.name is not None and fact.key not in ended]


def _watches(facts: Iterable[Fact], children: Iterable[str]) -> list[tuple[str, Watch]]:
    """The watches that the code has set: those of open children, monitors and links."""
    watches = dict.fromkeys(children, Watch.MONITOR)
    for pid, watch in _requested_watches(facts).items():
        watches[pid] = watches.get(pid, Watch(0)) | watch
    ended = {f.name for f in facts if f.kind == StepType.CHILD and f.state == FactState.RESULT}
    return [(pid, watch) for pid, watch in watches.items() if watch and pid not in ended]


def _requested_watches(facts: Iterable[Fact]) -> dict[str, Watch]:
    """The monitors and links that the code has requested and not withdrawn, by pid."""
    watches: dict[str, Watch] = {}
    for fact in sorted((f for f in facts if f.seq is not None and f.name is not None), key=lambda f: f.seq or 0):
        pid = str(fact.name)
        if fact.kind in _WATCH_KINDS and fact.ok:
            watches[pid] = watches.get(pid, Watch(0)) | _WATCH_KINDS[StepType(fact.kind)]
        elif fact.kind in _UNDOES:
            watches[pid] = watches.get(pid, Watch(0)) & ~_WATCH_KINDS[_UNDOES[StepType(fact.kind)]]
    return watches


def _step_keys(facts: Iterable[Fact]) -> list[str]:
    return [*dict.fromkeys(fact.key for fact in facts if fact.kind == StepType.DO)]
