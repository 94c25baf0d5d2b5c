"""Checks that a bulk action acts once on every instance that fits its filter, and on no other instance.

``BulkWatch`` finds the requests of an action by the reason in their audit records, which is unique. Whether an instance
fits is decided from the rows by ``Filter.fits``; the actions themselves use the queries of the store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.client.bulk import BulkResult, batch_size
from holdfast.core import codec
from holdfast.core.filters import Filter, FilteredRun
from holdfast.core.model import DEFAULT_QUEUE, Status, StepType
from holdfast.store.protocol import (
    Audit,
    ContinueRun,
    ControlResult,
    FactState,
    NewBulkJob,
    RecordAction,
    RestartRun,
    SaveBulkJob,
    SendEvent,
    TakeBulkJobs,
)
from holdfast.testing.simulation.watch import Rows
from simulation.features.bulk import BEGAN, ENDED, BulkCall

_ON_ONE_RUN = ("retry", "restart", "delete")
"""Actions that replace or delete a run: it must be a run that fitted the filter."""
_CREATING = (RestartRun, ContinueRun)


class _Current(NamedTuple):
    """The current run of an instance."""

    run: int
    instance: int
    """The id of the first run."""
    line: int
    filtered: FilteredRun

    @property
    def pid(self) -> str:
        return f"{self.filtered.workflow}/{self.filtered.instance_id}"


@dataclass(slots=True)
class WatchedAction:
    """A bulk action: a stored job, or a call of ``app.bulk``."""

    reason: str
    action: str
    arguments: Mapping[str, Any]
    filters: Sequence[Filter]
    rate: float | None
    upto: int | None = None
    """The last instance to visit; None: no limit."""
    fitting: dict[str, int] = field(default_factory=dict)
    """Instances that have fitted the filter since the beginning without interruption, each with its current run.

    Of a retry and a deletion, those that have had the same run all the time; of a retry, those that were errored.
    """
    ever: set[str] = field(default_factory=set)
    """Instances that have fitted the filter at some time since the beginning."""
    runs: set[int] = field(default_factory=set)
    """Runs that have fitted the filter at some time since the beginning."""
    lines: set[int] = field(default_factory=set)
    """The lines of these runs that had not ended then."""
    asked: dict[str, list[int]] = field(default_factory=dict)
    """The times of the requests, by instance."""
    retried_with_parent: set[str] = field(default_factory=set)
    """Children that may have been retried with a parent, or with a fork of the parent."""
    created: Counter[str] = field(default_factory=Counter)
    """The number of new runs, by instance."""
    sent: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The number of events, by instance and line."""
    workers: list[str] = field(default_factory=list)
    """The processes that have taken the job, in order."""
    ended: bool = False

    def __str__(self) -> str:
        return f"the {self.action} of {self.reason}"

    def fits(self, one: _Current) -> bool:
        visited = self.upto is None or one.instance <= self.upto
        return visited and all(one_filter.fits(one.filtered) for one_filter in self.filters)

    def acts_on(self, one: _Current) -> bool:
        """True if the action sends a request for an instance in this state."""
        return self.fits(one) and (self.action != "retry" or one.filtered.status is Status.ERRORED)

    def keeps(self, one: _Current) -> bool:
        """True if the instance fits the filter still."""
        run = self.fitting.get(one.pid)
        same_run = run == one.run or self.action not in ("retry", "delete")
        return run is not None and same_run and self.acts_on(one)


class BulkWatch:
    """``rows`` queries the database, ``now_ms`` is its time. ``changed`` is called by triggers.

    ``acted`` is called with each request of an action: the caller, the action, the id of the instance, and whether the
    request was accepted.
    """

    def __init__(self, rows: Rows, now_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._now_ms = now_ms
        self.actions: dict[str, WatchedAction] = {}
        """All actions, by reason."""
        self.forks: list[tuple[str, str, str]] = []
        """Forks: the id of the origin, the id of the fork, and the step before which it was cut."""
        self.acted: Callable[[str, WatchedAction, str, bool], None] = lambda *_: None
        self._open: list[WatchedAction] = []
        """The actions that have not ended."""
        self._jobs: dict[str, WatchedAction] = {}
        """The stored jobs, by id."""
        self._changed: set[str] = set()
        """Ids of instances whose runs have changed since the last look."""
        self._pids: dict[int, str] = {}
        """The pid of each run that was ever created."""
        self._parents: dict[str, set[int]] = {}
        """For each child, by pid: the runs in whose histories its start is recorded, also those that were deleted."""

    def changed(self, instance: str) -> None:
        if self._open:
            self._changed.add(instance)

    def created(self, run: int, workflow: str, instance: str) -> None:
        self._pids[run] = f"{workflow}/{instance}"

    def started(self, run: int, child: str) -> None:
        self._parents.setdefault(child, set()).add(run)

    @property
    def resumed(self) -> int:
        """The number of jobs that more than one process has worked on."""
        return sum(len(set(job.workers)) > 1 for job in self._jobs.values())

    def instances_with_new_runs(self) -> set[str]:
        """Ids of the instances that a bulk retry or restart may have given a new run."""
        return {
            _id(pid)
            for action in self.actions.values()
            if action.action in ("retry", "restart")
            for pid in (*action.created, *action.retried_with_parent)
        }

    # --- the watch of operations

    def before(self, operation: str, args: tuple[Any, ...]) -> Any:
        """The current run of the instance to which an action sends a request."""
        action = self._action_of(operation, args)
        if action is None:
            return None
        found = self._rows(
            "SELECT id FROM holdfast_run WHERE workflow = ? AND instance_id = ? AND current = 1",
            args[0].workflow,
            args[0].instance_id,
        )
        return found[0][0] if found else None

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, before: Any) -> Iterator[str]:
        action = self._action_of(operation, args)
        if action is not None:
            yield from self._check_request(action, args[0], answer, before)
        if self._changed:
            self._look_again()
        match operation, args[0] if args else None:
            case "bulk", NewBulkJob() as job:
                self._begin_job(job)
            case "bulk", SaveBulkJob(id=id, ended=True) as saved if answer:
                content = codec.plain(saved.progress)
                result = BulkResult(content["done"], content["failed"], content["skipped"])
                yield from self._check_end(self._jobs[id], result, content["errors"])
            case "control", RecordAction():
                yield from self._note(args[1])
            case _:
                pass

    def executed(self, caller: str, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        """Note the process whose call was executed."""
        if operation == "bulk" and isinstance(args[0], TakeBulkJobs):
            for row in answer:
                self._jobs[row.id].workers.append(caller)
        action = self._action_of(operation, args)
        if action is not None:
            self.acted(caller, action, args[0].instance_id, answer.run is not None and not answer.refused)

    def _action_of(self, operation: str, args: tuple[Any, ...]) -> WatchedAction | None:
        """The action that sends a control request."""
        if operation != "control" or len(args) < 2 or args[1] is None:
            return None
        return self.actions.get(args[1].reason)

    # --- beginnings and ends

    def _begin_job(self, job: NewBulkJob) -> None:
        content = codec.plain(job.content)
        arguments = content["arguments"]
        filters = [_stored_filter(one) for one in content["filters"]]
        action = WatchedAction(arguments["reason"], content["action"], arguments, filters, content["rate"], job.upto)
        self._jobs[job.id] = action
        self._begin(action)

    def _begin(self, action: WatchedAction) -> None:
        self.actions[action.reason] = action
        self._open.append(action)
        current = self._current()
        action.fitting = {one.pid: one.run for one in current if action.acts_on(one)}
        _add(action, current)

    def _note(self, audit: Audit) -> Iterator[str]:
        if audit.action == BEGAN and audit.reason is not None:
            call = BulkCall(*codec.plain(audit.reason.encode()))
            filters = [Filter(**conditions) for conditions in call.filters]
            self._begin(WatchedAction(call.reason, call.action, call.arguments, filters, call.rate))
        elif audit.action == ENDED and audit.reason is not None:
            reason, *counts = codec.plain(audit.reason.encode())
            yield from self._check_end(self.actions[reason], BulkResult(*counts), [])

    # --- which instances fit

    def _look_again(self) -> None:
        changed, self._changed = self._changed, set()
        current = self._current(changed)
        for action in self._open:
            unchanged = {pid: run for pid, run in action.fitting.items() if _id(pid) not in changed}
            action.fitting = unchanged | {one.pid: one.run for one in current if action.keeps(one)}
            _add(action, current)

    def _current(self, instances: Collection[str] | None = None) -> list[_Current]:
        """The current runs of all instances, or of those with these ids."""
        sql = (
            "SELECT id, instance, coalesce(line, id), workflow, instance_id, status, search, error_name "
            "FROM holdfast_run WHERE current = 1"
        )
        if instances is None:
            rows = self._rows(sql)
        else:
            names = json.dumps(sorted(instances))
            rows = self._rows(f"{sql} AND instance_id IN (SELECT value FROM json_each(?))", names)
        return [
            _Current(
                run,
                first,
                line,
                FilteredRun(
                    workflow, name, Status(status), _plain(search), error, 0, None, version=None, queue=DEFAULT_QUEUE
                ),
            )
            for run, first, line, workflow, name, status, search, error in rows
        ]

    # --- checks

    def _check_request(
        self, action: WatchedAction, request: Any, answer: ControlResult, run: int | None
    ) -> Iterator[str]:
        pid = f"{request.workflow}/{request.instance_id}"
        action.asked.setdefault(pid, []).append(self._now_ms())
        if action.action == "retry" and self._is_retried_with_parent(action, pid):
            action.retried_with_parent.add(pid)
            yield from self._check_child(action, request, answer, run)
            return
        if answer.run is None or run is None or answer.refused:
            return
        if not action.ended:
            yield from self._check_target(action, pid, run)
        if isinstance(request, _CREATING):
            action.created[pid] += 1
            if action.created[pid] > 1:
                yield f"{action} created {action.created[pid]} runs for {pid}"
            if isinstance(request, ContinueRun) and request.fork_id is not None:
                self.forks.append((request.instance_id, request.fork_id, action.arguments["before"]))
        if isinstance(request, SendEvent) and answer.sent is not None and not answer.sent.duplicate:
            [(line,)] = self._rows("SELECT coalesce(line, id) FROM holdfast_run WHERE id = ?", run)
            action.sent[pid, line] += 1
            if action.sent[pid, line] > 1:
                yield f"{action} sent {pid} its event {action.sent[pid, line]} times"

    def _check_target(self, action: WatchedAction, pid: str, run: int) -> Iterator[str]:
        if pid not in action.ever:
            yield f"{action} acted on {pid}, which did not fit its filter"
        elif action.action in _ON_ONE_RUN and run not in action.runs:
            lines = self._rows("SELECT coalesce(line, id) FROM holdfast_run WHERE id = ?", run)
            if action.action != "restart" or lines[0][0] not in action.lines:
                yield f"{action} acted on run {run} of {pid}, which did not fit its filter"

    def _is_retried_with_parent(self, action: WatchedAction, pid: str) -> bool:
        """True if a run that fitted, or a run that is retried with such a run, has recorded the start of the instance.

        The recorded starts decide, not the run that started the instance: a fork and a retry have copies of them, and
        wait for the children of their origin.
        """
        open_pids, known = [pid], {pid}
        while open_pids:
            parents = self._parents.get(open_pids.pop(), set())
            if not parents.isdisjoint(action.runs):
                return True
            new = {self._pids[run] for run in parents} - known
            known |= new
            open_pids += new
        return False

    def _check_child(
        self, action: WatchedAction, request: Any, answer: ControlResult, run: int | None
    ) -> Iterator[str]:
        """A child begins again only if it was terminated or cancelled."""
        if isinstance(request, RestartRun) and run is not None and answer.run is not None and not answer.refused:
            [(status,)] = self._rows("SELECT status FROM holdfast_run WHERE id = ?", run)
            if status not in (Status.TERMINATED, Status.CANCELLED):
                yield f"{action} restarted the child {request.instance_id}, which was {status}"

    def _check_end(self, action: WatchedAction, result: BulkResult, errors: Sequence[Any]) -> Iterator[str]:
        if action.ended:
            yield f"{action} ended a second time"
            return
        action.ended = True
        self._open.remove(action)
        if result.failed:
            yield f"{action} failed on {result.failed} instances: {errors}"
        visited = result.done + result.failed + result.skipped
        direct = action.asked.keys() - action.retried_with_parent
        if not len(action.fitting.keys() | direct) <= visited <= len(action.ever):
            yield (
                f"{action} reports {visited} instances, asked {len(direct)}, and {len(action.ever)} fitted its filter, "
                f"of which {len(action.fitting)} fit it still"
            )
        if action.action != "fork":  # instances without the step are not asked
            for pid in sorted(action.fitting.keys() - action.asked.keys()):
                yield f"{action} ended without a request to {pid}, which has fitted its filter all the time"
        accepted = {
            target
            for (target,) in self._rows(
                "SELECT DISTINCT target FROM holdfast_audit WHERE reason = ? AND action = ? AND outcome <> 'refused'",
                action.reason,
                action.action,
            )
        }
        if not len(accepted - action.retried_with_parent) <= result.done <= len(accepted):
            yield f"{action} reports {result.done} instances as done, and {len(accepted)} have an audit record"
        yield from _check_rate(action)


def _check_rate(action: WatchedAction) -> Iterator[str]:
    """Each process that takes a job begins with a batch, and then acts at the rate."""
    times = sorted(at for pid, times in action.asked.items() if pid not in action.retried_with_parent for at in times)
    if action.rate is None or not times:
        return
    seconds = (times[-1] - times[0]) / 1000
    allowed = max(1, len(action.workers)) * (batch_size(action.rate) + action.rate * seconds)
    if len(times) > allowed:
        yield f"{action} sent {len(times)} requests in {seconds:.3f} s, at a rate of {action.rate:g} a second"


def _add(action: WatchedAction, current: Sequence[_Current]) -> None:
    fitting = [one for one in current if action.fits(one)]
    action.ever |= {one.pid for one in fitting}
    action.runs |= {one.run for one in fitting}
    action.lines |= {one.line for one in fitting if not one.filtered.status.terminal}


def _stored_filter(content: Mapping[str, Any]) -> Filter:
    conditions = {name: value for name, value in content.items() if value is not None and name != "search"}
    return Filter(**conditions, search={key: value for key, _, value in content["search"]})


def _plain(search: bytes | None) -> Mapping[str, Any]:
    return {} if search is None else codec.plain(search)


def _id(pid: str) -> str:
    return pid.partition("/")[2]


def create_bulk_triggers(connection: Any, watch: BulkWatch) -> None:
    """Let triggers report the instances whose current runs change, all runs, and the recorded starts of children."""
    connection.create_scalar_function("bulk_changed", watch.changed, 1, deterministic=False)
    for name, event, row in (
        ("inserted", "INSERT", "new"),
        ("updated", "UPDATE OF status, current, instance, search", "new"),
        ("deleted", "DELETE", "old"),
    ):
        connection.execute(
            f"CREATE TEMP TRIGGER bulk_{name} AFTER {event} ON holdfast_run "
            f"BEGIN SELECT bulk_changed({row}.instance_id); END"
        )
    connection.create_scalar_function("bulk_created", watch.created, 3, deterministic=False)
    connection.create_scalar_function("bulk_started", watch.started, 2, deterministic=False)
    connection.execute(
        "CREATE TEMP TRIGGER bulk_created AFTER INSERT ON holdfast_run "
        "BEGIN SELECT bulk_created(new.id, new.workflow, new.instance_id); END"
    )
    connection.execute(
        f"CREATE TEMP TRIGGER bulk_started AFTER INSERT ON holdfast_fact WHEN new.kind = '{StepType.CHILD}' "
        f"AND new.state = {FactState.START:d} AND new.ok AND new.name NOTNULL "
        "BEGIN SELECT bulk_started(new.run, new.name); END"
    )
