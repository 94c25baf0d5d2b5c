"""Search over the schedules of a scenario, those with few deviations from the usual order first.

A schedule is executed from its beginning: there are no snapshots. At each state that was not reached before, the
search continues with the first action and remembers the others. Two reductions keep the number of schedules small:

- State hashing: a schedule that reaches a known state ends there.
- Sleep sets: if two actions are independent, only one order is executed. The sleep set of a state contains the actions
  that a schedule with another order already covers. A known state is explored again only for actions that were asleep
  at the first visit and are not now (Godefroid, *Partial-Order Methods for the Verification of Concurrent Systems*).
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from holdfast.testing.simulation.engine_log import capture_errors
from holdfast.testing.simulation.trace import Entry, Trace
from simulation.checks.final_checks import broken_promises
from simulation.explore.actions import Action, Actions, independent
from simulation.explore.loop import ExploredLoop
from simulation.explore.scenarios import Scenario
from simulation.explore.state import StateHash
from simulation.explore.system import ExploredWorld, SharedCode

_MAX_CALLBACKS = 60_000
_MAX_SECONDS = 60.0
"""Bound of virtual time after which a run that has not ended is stuck."""
_SETTLE_MOVES = 2
_MAX_SETTLE_MOVES = 50

Sleep = frozenset[Action]


class _KnownStateError(Exception):
    """The schedule reached a state whose continuations are known."""


@dataclass(slots=True)
class Exploration:
    """The result of the search over one scenario."""

    scenario: str
    schedules: int = 0
    states: int = 0
    transitions: int = 0
    complete: bool = False
    """True if no schedule is left."""
    failures: list[str] = field(default_factory=list)
    schedule: list[Action] = field(default_factory=list)
    """The schedule that failed."""
    trace: list[Entry] = field(default_factory=list)


def explore(scenario: Scenario, within: Callable[[], bool] = lambda: True) -> Exploration:
    """Execute all schedules of a scenario, while ``within`` returns True. The first failure ends the search."""
    found = Exploration(scenario.name)
    for faults in [(), *((kind,) for kind in scenario.faults)]:
        if not _explore_with(replace(scenario, faults=faults), within, found):
            return found
    found.complete = True
    return found


def _explore_with(scenario: Scenario, within: Callable[[], bool], found: Exploration) -> bool:
    """Execute all schedules with the faults of a scenario; return True if all were executed without a failure.

    One kind of fault at a time: a schedule has at most one fault, so the kinds do not meet.
    """
    search = _Search(scenario)
    for schedule in search.schedules():
        found.schedules += 1
        found.failures = schedule.run()
        if found.failures:
            found.schedule, found.trace = schedule.taken, schedule.trace.entries
        if found.failures or not within():
            break
    found.states += len(search.known)
    found.transitions += search.transitions
    return not search.left and not found.failures


def replay(scenario: Scenario, actions: list[Action]) -> list[str]:
    """Execute one schedule; return its failures."""
    search = _Search(scenario)
    return _Schedule(search, actions, frozenset()).run()


class _Search:
    """The states that are known, and the schedules that are left."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.code = SharedCode()
        self.known: dict[bytes, Sleep] = {}
        self.left: deque[tuple[list[Action], Sleep]] = deque([([], frozenset())])
        self.transitions = 0

    def schedules(self) -> Iterator[_Schedule]:
        while self.left:
            prefix, sleep = self.left.popleft()
            yield _Schedule(self, prefix, sleep)

    def choose(self, state: bytes, enabled: list[Action], taken: list[Action], sleep: Sleep) -> tuple[Action, Sleep]:
        """Return the action to continue with, and the sleep set after it. Raises ``_KnownStateError``."""
        before = self.known.get(state)
        if before is None:
            self.known[state] = sleep
            todo = [action for action in enabled if action not in sleep]
        else:
            self.known[state] = before & sleep
            todo = [action for action in enabled if action in before and action not in sleep]
        if not todo:
            raise _KnownStateError
        self.transitions += len(todo)
        after = [frozenset(o for o in sleep.union(todo[:n]) if independent(o, a)) for n, a in enumerate(todo)]
        self.left.extend(([*taken, action], asleep) for action, asleep in zip(todo[1:], after[1:], strict=True))
        return todo[0], after[0]


class _Schedule:
    """One execution: the actions of ``prefix``, then those that the search chooses."""

    def __init__(self, search: _Search, prefix: list[Action], sleep: Sleep) -> None:
        self._search = search
        self._prefix = prefix
        self._sleep = sleep
        self.taken: list[Action] = []
        self.trace = Trace()
        self._loop = ExploredLoop(_MAX_CALLBACKS)
        self._world = ExploredWorld(search.scenario, self._loop, self.trace, search.code)
        self._actions = Actions(search.scenario, self._world, self._loop)
        self._hash = StateHash(self._world, self._loop, self._actions)
        self._phases = self._prologue()
        self._end = self._loop.create_future()
        self._exploring = False
        self._settled = 0

    def run(self) -> list[str]:
        """Execute the schedule; return its failures."""
        collecting = gc.isenabled()
        gc.disable()
        self._loop.decide = self._decide
        try:
            with capture_errors(self._loop.unhandled):
                return self._failures()
        finally:
            with capture_errors([]):
                self._loop.end()
                self._world.end()
            if collecting:
                gc.enable()

    def _failures(self) -> list[str]:
        try:
            self._loop.run_until_complete(self._main())
        except _KnownStateError:
            broken: list[str] = []
        except AssertionError as error:
            broken = [f"{type(error).__name__}: {error}"]
        else:
            broken = [*broken_promises(self._world)]
        return [*self.trace.violations, *(f"unhandled: {error}" for error in self._loop.unhandled), *broken]

    async def _main(self) -> None:
        await self._loop.spawn(self._world.database.process, self._world.database.open())
        await self._end

    # --- decisions

    def _decide(self) -> None:
        """Continue when no process can run."""
        self._actions.forget_dead()
        if not self._exploring:
            self._execute_in_order()
        elif self._actions.execute_empty_call() or self._actions.move_time():
            pass
        elif self._actions.settled:
            self._settle()
        else:
            self._explore()

    def _explore(self) -> None:
        if self._loop.time() > _MAX_SECONDS:
            raise AssertionError(f"runs have not ended after {_MAX_SECONDS:g} s: {self._world.unfinished}")
        if self.trace.violations or self._loop.unhandled:
            raise AssertionError("a promise was broken")
        enabled = self._actions.enabled()
        position = len(self.taken)
        if not enabled:
            raise AssertionError("no action is possible")
        if position < len(self._prefix):
            action = self._prefix[position]
            if action not in enabled:
                raise AssertionError(f"the schedule cannot be repeated: {action} is not possible")
        elif len(enabled) == 1:
            action = enabled[0]
        else:
            action, self._sleep = self._search.choose(self._hash(), enabled, self.taken, self._sleep)
        self.taken.append(action)
        self.trace.add(self._loop.time(), "schedule", str(action))
        self._actions.apply(action)

    def _settle(self) -> None:
        """Execute the remaining calls, and let time move, so that late writes arrive."""
        self._world.table.late_notifications = False
        if self._execute_next():
            return
        busy = any(node.busy for node in self._world.nodes.values())
        if self._settled >= (_MAX_SETTLE_MOVES if busy else _SETTLE_MOVES):
            self._end.set_result(None)
            return
        self._settled += 1
        self._loop.move_time()

    # --- the part before the exploration

    def _execute_in_order(self) -> None:
        started = self._world.workload.instances["i1"].started
        if started and not self._search.scenario.begun:
            self._exploring = True
        elif not self._execute_next():
            self._exploring = not next(self._phases, False)
        self._world.table.late_notifications = self._exploring and self._search.scenario.late_notifications

    def _execute_next(self) -> bool:
        """Execute the oldest pending call; return False if there is none."""
        for call in self._world.table.pending.values():
            if call.process.alive:
                self._actions.apply(self._actions.execution(call))
                return True
        return False

    def _prologue(self) -> Iterator[bool]:
        """Boot all processes, then start the run. Yields True after each phase."""
        for node in self._world.nodes.values():
            node.boot()
        yield True
        self._world.follow(self._world.workload.scripts[0])
        yield True
