"""The actions that are possible in a state of a schedule, and their execution.

Replies arrive at once, unless they are slow, because the arrival of a reply does not affect other processes. Time moves
when no call is pending. So the schedules differ in the order of executed calls, in the moments at which requests of
clients arrive, and in the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from simulation.explore.calls import Call, CallEnd, FaultKind, ProcessFault
from simulation.explore.loop import ExploredLoop
from simulation.explore.scenarios import LEASE_MS, Scenario
from simulation.explore.system import WORKERS, ExploredWorld

_READS = frozenset({"load", "undelivered", "reply", "relations", "facts", "find", "get", "list", "outbox"})

_FINDS_SOMETHING = {
    "claim": "SELECT 1 FROM holdfast_task WHERE owner IS NULL AND run_at <= ?2 OR expires_at <= ?2 LIMIT 1",
    "reap": "SELECT 1 FROM holdfast_task WHERE owner IS NOT NULL AND lease_until <= ?2 LIMIT 1",
    "heartbeat": "SELECT 1 FROM holdfast_task WHERE owner = ?1 AND ?2 LIMIT 1",
    "fetch_signals": "SELECT 1 FROM holdfast_task WHERE owner = ?1 AND signal <> 0 AND ?2 LIMIT 1",
    "queues": "SELECT 1 FROM holdfast_queue WHERE ?1 <> '' AND ?2 LIMIT 1",
}
"""Calls of a worker's loops, each with a query that has a row if the call finds something: owner, time."""
_REPORTS_LOSSES = ("heartbeat", "fetch_signals")
"""Calls of which an empty reply tells a worker with turns that it has lost them."""
_MAX_SLOW_MOVES = 3
"""Number of moves of time for which a request or a reply may be slow: two heartbeats, and one more."""
_MAX_STALL_SECONDS = 2.2 * LEASE_MS / 1000
"""After this time a stalled process continues. Expired leases are freed once per lease, so the run was claimed."""


class ActionKind(StrEnum):
    EXECUTE = "execute"
    REPLY = "reply"
    """A slow reply arrives."""
    NOTIFY = "notify"
    """A late notification arrives."""
    REQUEST = "request"
    """A request of a client arrives."""
    TIME = "time"
    """Time moves on until a process does something."""
    FAIL = "fail"
    """A process crashes or stalls."""
    CONTINUE = "continue"


class Action(NamedTuple):
    kind: ActionKind
    target: str = ""
    """The call, the node, or the number of the request."""
    end: FaultKind = CallEnd.NORMAL
    operation: str = ""

    @property
    def is_fault(self) -> bool:
        return self.end is not CallEnd.NORMAL

    @property
    def reads_only(self) -> bool:
        return self.kind is ActionKind.EXECUTE and not self.is_fault and self.operation in _READS

    def __str__(self) -> str:
        fault = "" if self.end is CallEnd.NORMAL else f" ({self.end})"
        return f"{self.kind} {self.target}{fault}".rstrip()


def independent(one: Action, other: Action) -> bool:
    """Return True if the order of two actions makes no difference: both only read, in different processes."""
    return one.reads_only and other.reads_only and one.target.split()[0] != other.target.split()[0]


@dataclass(slots=True)
class _Move:
    """A move of time, which may pass several timers."""

    made: int
    """The number of calls that were made before, and of calls that found nothing since."""
    began: float


class Actions:
    """The actions of one schedule."""

    def __init__(self, scenario: Scenario, world: ExploredWorld, loop: ExploredLoop) -> None:
        self._scenario = scenario
        self._world = world
        self._loop = loop
        self._table = world.table
        self._scripts = world.workload.scripts[1:]
        self.arrived: set[int] = set()
        """The numbers of the requests that have arrived."""
        self.fault_left = True
        self._moving: _Move | None = None
        """The move of time that is being executed."""
        self.stopped_at: dict[str, float] = {}
        """Nodes that are stopped, each with the time at which it stopped."""

    @property
    def all_arrived(self) -> bool:
        return len(self.arrived) == len(self._scripts)

    @property
    def settled(self) -> bool:
        """True if every request was answered, every run has ended, and no process or call is delayed."""
        delayed = (
            self.stopped_at or self._table.held or any(c.slow_since is not None for c in self._table.pending.values())
        )
        return (
            not delayed
            and self.all_arrived
            and all(script.finished for script in self._world.workload.scripts)
            and not self._world.unfinished
        )

    def move_time(self) -> bool:
        """Move time to the next timer if no choice is to be made before; return False otherwise.

        No choice is made while only timers are due after which no process makes a call, or one that finds nothing.
        """
        next_timer = self._loop.next_timer
        if next_timer is not None and next_timer <= self._loop.time():
            self._loop.move_time()
            return True
        if self._moving is None or self._move_is_over(self._moving):
            self._moving = None
            return False
        self._loop.move_time()
        return True

    def _move_is_over(self, move: _Move) -> bool:
        """Return True if a process made a call, a stalled process can continue, or nothing happens any more."""
        now, lease = self._loop.time(), LEASE_MS / 1000
        continuing = any(move.began <= since + lease < now for since in self.stopped_at.values())
        return self._table.made != move.made or continuing or now >= move.began + lease

    def execute_empty_call(self) -> bool:
        """Execute a call of a worker's loop that finds nothing; return False if there is none.

        The moment of such a call makes no difference: the write after which it would find something wakes the loop.
        """
        for call in self._table.pending.values():
            if call.slow_since is None and self._executable(call) and self._finds_nothing(call):
                self.apply(_execute(call))
                if self._moving is not None:
                    self._moving.made += 1
                return True
        return False

    def _finds_nothing(self, call: Call) -> bool:
        sql = _FINDS_SOMETHING.get(call.id.operation)
        node = self._world.nodes[call.id.life.partition(".")[0]]
        if sql is None or node.opened is None or node.opened.worker is None:
            return False
        if node.busy and call.id.operation in _REPORTS_LOSSES:
            return False
        return not self._world.database.rows(sql, node.opened.worker.id, self._world.database.now_ms)

    def enabled(self) -> list[Action]:
        """The possible actions, in a fixed order."""
        self._note_stops()
        ready = [call for call in self._table.pending.values() if self._executable(call)]
        actions = [_execute(call) for call in ready]
        actions += [
            Action(ActionKind.REPLY, str(call.id), operation=call.id.operation)
            for call in self._table.held.values()
            if call.slow_since is not None and call.slow_since < self._table.moves and not call.process.stopped
        ]
        actions += [
            Action(ActionKind.CONTINUE, name)
            for name, since in self.stopped_at.items()
            if self._loop.time() > since + LEASE_MS / 1000
        ]
        actions += [
            Action(ActionKind.REQUEST, str(n), operation=script.requests[0].verb)
            for n, script in enumerate(self._scripts)
            if n not in self.arrived and self._may_arrive(n)
        ]
        actions += [Action(ActionKind.NOTIFY, life) for life in self._table.notifications]
        if self._time_may_move(ready):
            actions.append(Action(ActionKind.TIME))
        if self.fault_left:
            actions += self._faults(ready)
        return actions

    def _may_arrive(self, n: int) -> bool:
        before = self._scenario.requests[n].after
        return before is None or self._scripts[before].finished

    def _faults(self, ready: list[Call]) -> Iterator[Action]:
        for call in ready:
            if call.id.life.partition(".")[0] in self._scenario.faulty:
                for end in self._scenario.faults:
                    if isinstance(end, CallEnd):
                        yield _execute(call, end)
        for name in WORKERS:
            if name in self._scenario.faulty and self._world.nodes[name].busy and name not in self.stopped_at:
                for end in self._scenario.faults:
                    if isinstance(end, ProcessFault):
                        yield Action(ActionKind.FAIL, name, end)

    def _time_may_move(self, ready: list[Call]) -> bool:
        """Return True if no call is pending, and nothing that is delayed has been delayed long enough."""
        moves = self._table.moves
        delayed = [call for call in (*ready, *self._table.held.values()) if not call.process.stopped]
        slow = [call.slow_since for call in delayed if call.slow_since is not None]
        return (
            not any(call.slow_since is None for call in ready)
            and not self._table.notifications
            and (self.all_arrived or moves < self._scenario.max_moves)
            and not any(moves - since >= _MAX_SLOW_MOVES for since in slow)
            and not any(self._loop.time() > since + _MAX_STALL_SECONDS for since in self.stopped_at.values())
        )

    def _executable(self, call: Call) -> bool:
        waiting = call.slow_since is not None and call.slow_since >= self._table.moves
        return call.process.alive and not call.process.stopped and not waiting

    def _note_stops(self) -> None:
        """Note processes that stopped after a call."""
        for name in WORKERS:
            process = self._world.nodes[name].process
            if process is not None and process.alive and process.stopped and name not in self.stopped_at:
                self.stopped_at[name] = self._loop.time()

    # --- execution

    def execution(self, call: Call) -> Action:
        """The action that executes a call."""
        return _execute(call)

    def apply(self, action: Action) -> None:
        if action.is_fault:
            self.fault_left = False
            self._world.note_fault(action.end, action.operation)
        match action.kind:
            case ActionKind.EXECUTE:
                self._execute(action)
            case ActionKind.REPLY:
                [call] = [call for call in self._table.held.values() if str(call.id) == action.target]
                self._deliver(call)
            case ActionKind.NOTIFY:
                self._table.notifications.pop(action.target).notify()
            case ActionKind.REQUEST:
                self.arrived.add(int(action.target))
                self._world.follow(self._scripts[int(action.target)])
            case ActionKind.TIME:
                self._table.moves += 1
                self._moving = _Move(self._table.made, self._loop.time())
            case ActionKind.FAIL if action.end is ProcessFault.CRASH:
                self._world.nodes[action.target].kill("at once")
                self.forget_dead()
            case ActionKind.FAIL:
                self._set_stopped(action.target, stopped=True)
            case ActionKind.CONTINUE:
                del self.stopped_at[action.target]
                self._set_stopped(action.target, stopped=False)

    def _execute(self, action: Action) -> None:
        [call] = [call for call in self._table.pending.values() if str(call.id) == action.target]
        if action.end is CallEnd.SLOW_REQUEST:
            call.slow_since = self._table.moves
            return
        del self._table.pending[call.id]
        call.permission.set_result(CallEnd(action.end))

    def _deliver(self, call: Call) -> None:
        del self._table.held[call.id]
        if call.release is not None and not call.release.done():
            call.release.set_result(None)

    def _set_stopped(self, name: str, *, stopped: bool) -> None:
        process = self._world.nodes[name].process
        if process is None:
            return
        process.stopped = stopped
        if not stopped:
            for call in [call for call in self._table.held.values() if call.process is process]:
                self._deliver(call)

    def forget_dead(self) -> None:
        """Drop the calls and notifications of dead processes."""
        for life in [life for life, store in self._table.notifications.items() if not store.process.alive]:
            del self._table.notifications[life]
        for calls in (self._table.pending, self._table.held):
            for id_ in [id_ for id_, call in calls.items() if not call.process.alive]:
                del calls[id_]


def _execute(call: Call, end: FaultKind = CallEnd.NORMAL) -> Action:
    return Action(ActionKind.EXECUTE, str(call.id), end, call.id.operation)
