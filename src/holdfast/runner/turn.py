"""The life of a run while a worker holds it.

advance the machine → plan one commit → write it → start the steps it asked for → wait for what becomes known → again,
until the run ends or rests. Read ``Turn.run`` first; the rest are its verbs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from holdfast.core import failure
from holdfast.core.failure import Failure
from holdfast.core.model import Level, Status, TaskKind
from holdfast.core.names import SYSTEM_CATEGORY
from holdfast.errors import StoreError
from holdfast.kernel.definition import Definition
from holdfast.kernel.driver import Call, Driver, Machine, Outcome, Rest
from holdfast.kernel.options import RunOptions
from holdfast.ports import Alarm, Randomness
from holdfast.runner import report
from holdfast.runner.advancer import Advancer
from holdfast.runner.attempts import Ports, Running
from holdfast.runner.cache import Rested
from holdfast.runner.committer import Committer
from holdfast.runner.letterbox import UNREAD, Letterbox
from holdfast.runner.patience import backoff, patiently
from holdfast.store.protocol import (
    FIRST_EPOCH,
    SUSPECT_LOSSES,
    Answer,
    Claim,
    Commit,
    Committed,
    Created,
    Fact,
    Finish,
    Follows,
    Foreseen,
    Heartbeat,
    Lease,
    Log,
    Mail,
    NewRun,
    Observed,
    Park,
    Release,
    RunRecord,
    Sent,
    Signal,
    Snapshot,
    Store,
    Verdict,
)

_log = logging.getLogger("holdfast")

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Budget:
    """How many more steps may be started; shared by the turns of one pass."""

    steps: int | None = None

    def take(self) -> bool:
        if self.steps is None:
            return True
        self.steps -= 1
        return self.steps >= 0

    @property
    def spent(self) -> bool:
        return self.steps is not None and self.steps <= 0


@dataclass(slots=True, eq=False)
class Tools:
    """What every turn of a worker shares."""

    store: Store
    committer: Committer
    advancer: Advancer
    ports: Ports
    random: Randomness
    lease_ms: int
    tell: Callable[[Committed], None]
    """Called with commits that reached other runs."""
    adopt: Callable[[NewRun], int]
    """Takes a run that is about to be made for the worker itself, if it has room: how many places that needs."""
    begin: Callable[[int, Sequence[Created]], None]
    """So many places were kept, and these have come."""
    later: Callable[[Coroutine[Any, Any, None]], None]
    """Does something that nobody waits for."""
    posted: Callable[[], None]
    """Something was written that is to go out."""
    beat_within: Callable[[int], None]
    """Sends the next heartbeat in time for a task with a lease of this length."""
    keep_late: Callable[[RunRecord, Sequence[Fact], Sequence[Log]], None]
    """Stores results and log lines that were not written before their run ended; nothing if it has not ended."""
    strict: bool = False
    """Replay is strict for every workflow."""
    budget: Budget = field(default_factory=Budget)


class _Kept(NamedTuple):
    """A rest that is written later, and what it is about."""

    rest: Rest
    outcomes: Sequence[Outcome]


@dataclass(slots=True, eq=False)
class _Ahead:
    """The first rest of a turn that was foreseen."""

    rest: Rest
    foreseen: Foreseen
    written: bool = False
    """It went along with the event, and what follows from that is done."""


class TurnOver(BaseException):
    """The turn has ended: the run rests, ended, or is not ours any more. Outside Exception, as control flow is."""


class Turn:
    """One claimed run, from the claim to its rest."""

    over = False
    """It came to its end before it was run."""
    _heartbeats: Sequence[Fact] = ()
    """The last heartbeats of attempts that failed, to be stored before their failure."""
    _warnings: Sequence[str] = ()
    """The engine's warnings about this run that are not written yet."""
    lease_ms: int | None = None
    """The task's own lease; None: the worker's."""
    idle = False
    """It was released, and nothing was written."""

    def __init__(
        self,
        tools: Tools,
        claim: Claim,
        definition: Definition,
        machine: Machine | None,
        plan: Sequence[Fact] = (),
    ) -> None:
        """``plan``: of a run that was made just now."""
        if definition.driver is None:
            raise RuntimeError(f"{definition.name} cannot be run here")
        self.claim = claim
        self.task = claim.task
        self.machine = machine
        self.finish: Finish | None = None
        self.rested: Rested | None = None
        """It was released in order: its machine can be kept for the next time."""
        self.due_at: int | None = None
        """When a released run is due again."""
        self._tools = tools
        self._driver: Driver = definition.driver
        self._plan_of_new = plan
        self._has_plan = definition.blueprint is not None
        self._buffers = definition.persist == "task"
        self._task_ms = RunOptions.decode(claim.run.options).task_ms
        self._buffer: list[_Kept] = []
        self._waiting_calls: list[Call] = []
        """Of rests that were put off: to be started when those are written."""
        self._running: dict[str, Running] = {}
        self._outcomes: deque[Outcome] = deque()
        self._mail: Sequence[Mail] = claim.mailbag.mail
        self._mail_waiting = False
        self._began = self._now() if claim.at is None else claim.at
        self._mail_until: int | None = claim.at
        """Mail that was read just now is known until then: a deadline after that is not missed yet. None: until now."""
        self._letterbox = Letterbox(claim.mailbag)
        self._acted: Sequence[Answer] = ()
        self._lost = claim.lost
        self._took_losses = False
        """The last advance counted lost attempts: they are written before anything runs again."""
        self._holding = False
        self._stopping = False
        self._progressed = False
        self._unstarted = False
        """Calls were left out because the turn has to stop: they are for whoever claims the run next."""
        self._planned: Finish | Park | Release | None = None
        self._last_outcomes: list[Outcome] = []
        self._started_at: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: Alarm | None = None
        self._noting: asyncio.Task[None] | None = None
        self._gone = False
        self._cut_off = 0
        """How many transactions of steps in a row ended nobody knows how."""
        self._unsure = False
        """What is known was read since the last commit, and may have been written by another holder."""
        self._loaded = machine is not None
        self._ahead: _Ahead | None = None

    # --- before the claim

    def foresee(self) -> Foreseen:
        """Run the code up to its first rest, as if the event that the claim has were sent already."""
        [mail] = self._mail
        rest = self._advance()
        self._planned = rest.follows.next = self._plan(rest)
        commit = Commit(self.task, rest.observed, rest.follows, seen=mail.n)
        foreseen = Foreseen(self.claim.run, mail.n, mail.created_at, commit)
        self._ahead = _Ahead(rest, foreseen)
        return foreseen

    def comes_true(self, sent: Sent) -> bool:
        """Whether that is what came, and the turn can go on from there; ``over``: there is nothing more to do."""
        if self._ahead is None:
            return False
        if sent.claim is not None and self._ahead.foreseen.is_met_by(sent.claim):
            self.claim = sent.claim
            return True
        if sent.committed is None:
            return False
        self._ahead.written = True
        report.committed(self.claim.run, self._ahead.foreseen.commit, sent.committed)
        try:
            self._act_on(sent.committed)
        except TurnOver:
            self.over = True
        return True

    # --- the life of a run

    async def run(self) -> None:
        try:
            if self.machine is None:
                self.machine = await self._load()
            while True:
                rest = self._advance()
                committed = await self._commit(rest)
                self._act_on(committed)
                if rest.calls and rest.lease_ms != self.lease_ms:
                    await self._set_lease(rest.lease_ms)
                self._start_calls(rest)
                await self._next_news(rest)
        except TurnOver:
            pass
        finally:
            self.drop()

    # --- told from outside

    def signal(self, signal: Signal | None) -> None:
        """Somebody wants something of the run; None: it is not ours any more."""
        if signal is None:
            self._lose()
            return
        if signal & Signal.MAIL:
            self._mail_waiting = True
        if signal & Signal.PAUSE:
            self._holding = True
        self._wake()

    def stop(self) -> None:
        """Start no more steps; give the run back once those in flight have ended."""
        self._stopping = True
        self._wake()

    @property
    def suspect(self) -> bool:
        """Its last holders died with it, and it has not got further yet."""
        return self.claim.run.losses >= SUSPECT_LOSSES and not self._progressed

    @property
    def waiting(self) -> bool:
        """It waits for steps in flight, a timer or a signal."""
        return self._waiter is not None and not self._waiter.done()

    def note(self) -> asyncio.Task[None] | None:
        """Show attempts that have been running for a while, and their log lines; the task that writes them, if any."""
        if self._running and self._noting is None and not self._in_transaction:
            self._noting = asyncio.get_running_loop().create_task(self._write_news())
            self._noting.add_done_callback(self._noted)
        return self._noting

    # --- advance

    def _advance(self) -> Rest:
        if self._ahead is not None:
            return self._ahead.rest
        machine = self._machine()
        if self._holding:
            machine.hold()
        mail, self._mail = self._mail, ()
        acted, self._acted = self._acted, ()
        self._took_losses, self._lost = self._lost, False
        began = self._now()
        until, self._mail_until = self._mail_until, None
        time = began if until is None else min(began, until)
        rest = machine.advance(time, self._next_outcomes(), mail, acted=acted, lost=self._took_losses)
        self._check_time(rest, self._now() - began)
        if rest.started_at is not None:
            self._started_at = rest.started_at
        if rest.observed.transaction is None:
            self._undo(self._last_outcomes)  # the code does not want it any more
        if rest.follows.logs:
            self._warnings = [*self._warnings, *(log.message for log in rest.follows.logs if _is_warning(log))]
        return rest

    def _check_time(self, rest: Rest, took_ms: int) -> None:
        """Code that ran longer than its task_timeout: nothing that it did counts, and the run is set aside."""
        most = self._task_ms
        if most is not None and took_ms > most:
            rest.follows, rest.calls = Follows(), ()
            rest.end = Park(
                f"TASK_TIMEOUT: the code ran for {took_ms} ms between two waits, and its task_timeout is {most} ms; "
                "resume to try again"
            )

    def _next_outcomes(self) -> list[Outcome]:
        """All that is there, but an outcome that writes more than itself goes alone: it may be refused."""
        taken: list[Outcome] = []
        while self._has_news_of_steps() and not (taken and self._outcomes[0].transactional):
            taken.append(self._outcomes.popleft())
            if taken[-1].transactional:
                break
        self._last_outcomes = taken
        return taken

    # --- plan and commit

    async def _commit(self, rest: Rest) -> Committed | None:
        """Write what has to be durable before anything else happens; None if that is nothing."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.written:
            return None
        if rest.cancelled:
            self._add_lines_of_cancelled(rest)
        self._planned = self._plan(rest)
        if self._planned is None and not self._holding and self._can_wait(rest):
            return None
        self._cancel(key for key in rest.cancelled if self._holds_transaction(key))
        live = rest.observed.transaction is not None
        if self._heartbeats and not live and not self._in_transaction:
            await self._record_heartbeats()
        if self._planned is None and self._in_transaction and not live:
            self._put_off(rest)
            return None
        if self._noting is not None and not live:
            await asyncio.wait([self._noting])
        if self._buffer and rest.transactional and not live:
            # Statements may be refused; what was buffered before them must not be refused with them.
            await self._write(Commit(self.task, in_flight=1))
        if isinstance(self._planned, Release):
            self.idle = rest.empty and not self._buffer and not self._progressed and self._started_at is None
        rest.follows.next = self._planned
        return await self._write(Commit(self.task, rest.observed, rest.follows, in_flight=self._in_flight))

    @property
    def _in_flight(self) -> int:
        """Attempts that run, and those that have ended since the machine rested: their outcomes are not written yet."""
        return len(self._running) + len(self._outcomes)

    def _add_lines_of_cancelled(self, rest: Rest) -> None:
        """Keep the log lines of attempts that the code has given up; they are cancelled after the commit."""
        running = filter(None, map(self._running.get, rest.cancelled))
        rest.observed.logs = [*rest.observed.logs, *(line for one in running for line in one.take_lines())]

    @property
    def _in_transaction(self) -> bool:
        """A step of this run has a transaction open: a commit may have to wait for it, and it for that commit."""
        return any(running.in_transaction for running in self._running.values())

    def _put_off(self, rest: Rest) -> None:
        """What is known now is written with that transaction or after it, and what follows is started then."""
        self._keep(rest)
        self._waiting_calls.extend(rest.calls)
        rest.calls = ()

    def _can_wait(self, rest: Rest) -> bool:
        """Nothing to write, or (persist="task") nothing that has to be written yet."""
        if self._unsure or self._warnings:
            return False  # a warning is written before what it warns of
        if self._buffer and (self._waiting_calls or self._has_kept_acts):
            return False  # they were put off beside a transaction, and nothing else would write them
        if rest.empty:
            # What was put off is written before anything that follows from it: a retry before its failure is not one.
            return self._buffers or not self._buffer
        if self._buffers and not rest.transactional and not rest.follows.acts and not self._took_losses:
            self._keep(rest)
            return True
        return False

    def _keep(self, rest: Rest) -> None:
        self._buffer.append(_Kept(rest, self._last_outcomes))

    def _write(self, commit: Commit) -> Awaitable[Committed | None]:
        commit.started_at, self._started_at = self._started_at, None
        commit.seen = self._letterbox.seen
        buffered, self._buffer = self._buffer, []
        if buffered:
            commit = _merged(buffered, commit)
        if commit.follows.acts:
            self._machine().seal(commit.follows.acts)
            return self._write_acts(commit, buffered)
        return self._write_sealed(commit, buffered)

    async def _write_acts(self, commit: Commit, buffered: list[_Kept]) -> Committed | None:
        """Children that are started may begin here at once, as far as there is room."""
        children = [act.deed for act in commit.follows.acts if isinstance(act.deed, NewRun)]
        adopted = sum(map(self._tools.adopt, children))
        committed: Committed | None = None
        try:
            committed = await self._write_sealed(commit, buffered)
        finally:
            self._tools.begin(adopted, committed.births if committed is not None else ())
        if committed is not None:
            self._acted = [*self._acted, *committed.acted]
        return committed

    async def _write_sealed(self, commit: Commit, buffered: list[_Kept]) -> Committed | None:
        if commit.observed.transaction is None:
            done = await self._tools.committer.commit(commit)
            report.committed(self.claim.run, commit, done)
            if done.verdict is Verdict.LOST:
                self._keep_refused(commit, buffered)
            if commit.observed.outbox:
                self._tools.posted()
            return done
        committed = await self._write_transaction(commit, buffered)
        if committed is not None:
            report.committed(self.claim.run, commit, committed)
            if committed.verdict is Verdict.LOST:
                self._keep_refused(commit, buffered)
        if buffered and committed is not None and committed.verdict is Verdict.REJECTED:
            self._buffer = buffered  # it happened all the same
            await self._write(Commit(self.task, in_flight=1))
        return committed

    async def _write_transaction(self, commit: Commit, buffered: list[_Kept]) -> Committed | None:
        """Not with the others: they may have to wait for this very transaction to end."""
        try:
            [committed] = await self._tools.store.commit([commit])
        except StoreError as error:
            # Nobody knows whether it is written. The store does: go on from what is there.
            self._cut_off += 1
            self._unsure = True
            pause = backoff(self._cut_off, self._tools.random)
            run = self.claim.run.pid
            _log.warning("the transaction of a step of %s was cut off, going on in %.1f s: %s", run, pause, error)
            self._forget_machine()
            # If it is not written: what ended beside that step has ended all the same, and is not called again.
            self._outcomes.extendleft(outcome for kept in reversed(buffered) for outcome in reversed(kept.outcomes))
            await asyncio.sleep(pause)
            return None
        self._cut_off = 0
        return committed

    def _plan(self, rest: Rest) -> Finish | Park | Release | None:
        """What becomes of the task: ended, parked, released, or (None) kept because steps are or will be running."""
        if rest.end is not None:
            return rest.end
        if self._running or self._outcomes or self._holding or rest.follows.acts or self._has_kept_acts:
            return None
        if not self._letterbox.has_all(rest.topics):
            return None
        if rest.calls or self._waiting_calls or self._unstarted:
            if self._unstarted or self._stopping or self._tools.budget.spent:
                return Release(self._now(), TaskKind.RESUME, status=Status.ACTIVE)
            return None
        kind = TaskKind.RETRY if rest.retrying else TaskKind.WAKE
        return Release(rest.wake_at, kind, rest.topics)

    @property
    def _has_kept_acts(self) -> bool:
        """What comes of them is for this machine to know, so it goes on when they are written."""
        return any(kept.rest.follows.acts for kept in self._buffer)

    def _act_on(self, committed: Committed | None) -> None:
        if committed is None:
            return
        match committed.verdict:
            case Verdict.APPLIED:
                self._applied(committed)
            case Verdict.PAUSING:
                self._holding = True
                self._warnings = ()  # left out with all else that follows; repeated after the resume
            case Verdict.REJECTED:
                self._rejected(committed)
            case Verdict.LOST | Verdict.PAUSED:
                raise TurnOver

    def _applied(self, committed: Committed) -> None:
        self._unsure = False
        if self._warnings:
            self._repeat_warnings()
        if committed.started or committed.sent or committed.acted or committed.touched is not None:
            self._tools.tell(committed)
        match self._planned:
            case Finish():
                self.finish = self._planned
                raise TurnOver
            case Park():
                raise TurnOver
            case Release() as released:
                self._release(released, due_now=committed.due_now)
                raise TurnOver
            case None:
                pass
        if self._holding:
            self._forget_machine()  # the pause was withdrawn: the code goes on from what is written
            self._holding = False
        self._progressed = True
        if committed.signal is not Signal.NONE:
            self.signal(committed.signal)

    def _repeat_warnings(self) -> None:
        """What the engine warns of in a run's log is in the worker's log too, once it is written."""
        warnings, self._warnings = self._warnings, ()
        for message in warnings:
            _log.warning("%s (run %d): %s", self.claim.run.pid, self.claim.run.number, message)

    def _release(self, released: Release, *, due_now: bool) -> None:
        self.due_at = self._now() if due_now else released.run_at
        if released.status is Status.WAITING:
            self.claim.run.status = Status.WAITING
            self.rested = Rested(
                self.claim.run, self.task.epoch, self._machine(), released.topics, self.due_at, self._letterbox.known
            )

    def _rejected(self, committed: Committed) -> None:
        """A step's statements were refused: that attempt failed, and the code must not have seen it succeed."""
        if committed.unique:
            error = failure.unique_violation(committed.message)
        elif committed.unreachable:
            error = Failure("InstanceNotFoundError", committed.message, kind="NotFound", retryable=False)
        else:
            error = Failure("StatementError", committed.message)
        self._outcomes.extendleft(o.failed(error) for o in self._last_outcomes)
        self._forget_machine()

    # --- start

    async def _set_lease(self, lease_ms: int | None) -> None:
        """Give the task the lease of its calls before they start, so that a takeover follows that lease."""
        self.lease_ms = lease_ms
        store, lease = self._tools.store, Lease(self.task, lease_ms or self._tools.lease_ms)
        self._tools.beat_within(lease.lease_ms)
        what = f"set the lease of run {self.claim.run.pid}"
        [held] = await patiently(lambda: store.set_leases([lease]), what, self._tools.random)
        if not held:
            raise TurnOver

    def _start_calls(self, rest: Rest) -> None:
        if self.machine is None:
            return  # the rest is not written: the next machine decides anew what is cancelled and what is called
        self._cancel(rest.cancelled)
        if self._holding or self._gone:
            return
        calls = rest.calls
        if self._waiting_calls and not self._buffer:
            calls = [*self._waiting_calls, *calls]
            self._waiting_calls = []
        for call in calls:
            known = self._running.get(call.key)
            if (known is not None and known.number == call.attempt) or self._has_outcome(call.key):
                continue
            if self._stopping or not self._tools.budget.take():
                self._unstarted = True
                continue
            self._running[call.key] = Running(call, self.claim.run, self._tools.ports, self._report)

    def _cancel(self, keys: Iterable[str]) -> None:
        for key in keys:
            running = self._running.pop(key, None)
            if running is not None:
                running.cancel()
            elif self._waiting_calls:
                self._waiting_calls = [call for call in self._waiting_calls if call.key != key]

    def _holds_transaction(self, key: str) -> bool:
        running = self._running.get(key)
        return running is not None and running.in_transaction

    def _has_outcome(self, key: str) -> bool:
        return any(o.key == key for o in self._outcomes)

    def _report(self, outcome: Outcome) -> None:
        self._running.pop(outcome.key, None)
        if outcome.heartbeat is not None:
            self._heartbeats = [*self._heartbeats, outcome.heartbeat]
        if outcome.transaction is None:
            self._outcomes.append(outcome)
        else:
            self._outcomes.appendleft(outcome)  # the others may have to wait for it
        self._wake()

    # --- wait for news

    async def _next_news(self, rest: Rest) -> None:
        """Wait until a step ended, something is due, a message came, or somebody wants something."""
        if self.machine is None:
            self.machine = await self._load()
            self._letterbox = Letterbox(UNREAD)  # the new one has not seen any
            await self._look_for_mail(rest.topics)
            return
        while not self._news(rest):
            self._set_alarm(rest.wake_at)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        self._clear_alarm()
        if self._gone:
            raise TurnOver
        if self._mail_waiting or (rest.topics and self._due(rest.wake_at)) or not self._letterbox.has_all(rest.topics):
            # Before a deadline is called missed, look for events that came in time.
            await self._look_for_mail(rest.topics)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _has_news_of_steps(self) -> bool:
        """An outcome can be taken. One that goes alone waits until no transaction is open."""
        if not self._outcomes:
            return False
        first = self._outcomes[0]
        return first.transaction is not None or not (first.transactional and self._in_transaction)

    def _news(self, rest: Rest) -> bool:
        if self._gone or self._acted or self._has_news_of_steps():
            return True
        if self._holding:
            return not self._running
        if self._unstarted and not self._running:
            return True
        return self._mail_waiting or self._due(rest.wake_at) or not self._letterbox.has_all(rest.topics)

    def _due(self, wake_at: int | None) -> bool:
        return wake_at is not None and wake_at <= self._now()

    def _set_alarm(self, wake_at: int | None) -> None:
        self._clear_alarm()
        if wake_at is not None and not self._holding:
            self._alarm = self._tools.ports.timers.call_at(wake_at, self._wake)

    def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # --- show long attempts

    def heartbeats(self) -> list[Heartbeat]:
        """Heartbeats of running attempts that are not stored yet."""
        found = [running.heartbeat() for running in self._running.values()]
        return [Heartbeat(self.task, fact) for fact in found if fact is not None]

    async def _record_heartbeats(self) -> None:
        facts, self._heartbeats = self._heartbeats, ()
        await record_heartbeats(self._tools.store, [Heartbeat(self.task, fact) for fact in facts])

    async def _write_news(self) -> None:
        facts: list[Fact] = []
        logs: list[Log] = []
        for running in self._running.values():
            new_facts, new_logs = running.news()
            facts.extend(new_facts)
            logs.extend(new_logs)
        if facts or logs:
            await self._write_beside(Observed(facts=facts, logs=logs))

    async def _write_beside(self, observed: Observed) -> None:
        """Write while steps run; results that are buffered go along, so that a step that takes long delays none."""
        commit = self._beside(observed)
        write = self._write if self._buffer and not self._has_kept_acts else self._tools.committer.commit
        committed = await write(commit)
        if committed is not None:
            self._written_beside(committed)

    def _beside(self, observed: Observed) -> Commit:
        """A commit while the turn waits for its steps."""
        return Commit(self.task, observed, in_flight=max(1, len(self._running)))

    def _written_beside(self, committed: Committed) -> None:
        if committed.verdict is Verdict.LOST:
            self._lose()
        elif committed.verdict is Verdict.PAUSING:
            self.signal(Signal.PAUSE)
        else:
            self.signal(committed.signal)

    def _noted(self, task: asyncio.Task[None]) -> None:
        self._noting = None
        if not task.cancelled() and task.exception() is not None:
            _log.warning("could not note running steps of %s: %r", self.claim.run.pid, task.exception())

    # --- loading and leaving

    async def _load(self) -> Machine:
        run = self.claim.run
        new = run.started_at is None and self.task.epoch == FIRST_EPOCH and not self._loaded
        snapshot: Snapshot | None = None
        if new and self._plan_of_new:
            snapshot = Snapshot(self._plan_of_new, {}, 0)
        elif not new or self._has_plan:
            store = self._tools.store
            snapshot = await self._patiently(lambda: store.load(run.run))
            [run] = await self._patiently(lambda: store.get([run.run]))
            if self._now() >= self._began + self._tools.lease_ms // 2:
                self._unsure = True  # it took so long that others may have come in between
        self._loaded = True
        return self._driver.open(run, snapshot, self._tools.ports.requests, strict=self._tools.strict)

    async def _look_for_mail(self, topics: frozenset[str]) -> None:
        self._mail_waiting = False
        self._mail_until = self._now()
        store, run = self._tools.store, self.task.run
        self._mail = await self._letterbox.look(
            topics, lambda wanted, after: self._patiently(lambda: store.undelivered(run, wanted, after))
        )

    async def _patiently(self, read: Callable[[], Awaitable[R]]) -> R:
        return await patiently(read, f"read run {self.claim.run.pid}", self._tools.random)

    def _machine(self) -> Machine:
        if self.machine is None:
            raise RuntimeError("the machine was dropped")
        return self.machine

    def _forget_machine(self) -> None:
        if self.machine is not None:
            self.machine.close()
            self.machine = None
            self._warnings = ()  # the next machine warns again of what was not written
            self._waiting_calls, self._acted = [], ()  # the next one asks again

    def _lose(self) -> None:
        self._gone = True
        self._cancel_running()
        self._wake()

    def _cancel_running(self) -> None:
        """Cancel all attempts. The turn cannot write any more."""
        lines = [line for running in self._running.values() for line in running.take_lines()]
        for running in self._running.values():
            running.cancel()
        self._running.clear()
        buffered, self._buffer = self._buffer, []
        logs = [line for kept in buffered for line in kept.rest.observed.logs]
        self._keep_late(_results(buffered), [*logs, *lines])

    def _keep_refused(self, commit: Commit, buffered: Sequence[_Kept]) -> None:
        """Keep what a refused commit would have written, but for a result whose rows or messages are refused, too."""
        whole = self._buffers and not commit.observed.transactional
        self._keep_late(commit.observed.facts if whole else _results(buffered), commit.observed.logs)

    def _keep_late(self, results: Sequence[Fact], lines: Sequence[Log]) -> None:
        """The turn cannot write any more: if the run was ended, what it has still to write is kept."""
        if results or lines:
            self._tools.keep_late(self.claim.run, results, lines)

    def drop(self) -> None:
        """Leave nothing running; keep the machine only if it rests in order."""
        self._clear_alarm()
        self._cancel_running()
        self._undo(self._outcomes)
        if self.rested is None:
            self._forget_machine()

    def _undo(self, outcomes: Iterable[Outcome]) -> None:
        """Give up the open transactions of outcomes that will not be written."""
        for outcome in outcomes:
            if outcome.transaction is not None:
                self._tools.later(outcome.transaction.rollback())

    def _now(self) -> int:
        return self._tools.ports.now_ms()


async def record_heartbeats(store: Store, heartbeats: Sequence[Heartbeat]) -> None:
    """Store heartbeats. A failure costs progress and nothing else, so it is only logged."""
    if heartbeats:
        try:
            await store.record_heartbeats(heartbeats)
        except StoreError as error:
            _log.warning("could not record the heartbeats of %d steps: %s", len(heartbeats), error)


def _is_warning(log: Log) -> bool:
    return log.category == SYSTEM_CATEGORY and log.level == Level.WARN


def _results(buffer: Iterable[_Kept]) -> list[Fact]:
    return [fact for kept in buffer for fact in kept.rest.observed.facts]


def _merged(buffer: list[_Kept], last: Commit) -> Commit:
    """One commit of several rests, in their order."""
    observed, follows = Observed(transaction=last.observed.transaction), Follows(next=last.follows.next)
    parts: list[tuple[Observed, Follows]] = [(kept.rest.observed, kept.rest.follows) for kept in buffer]
    for o, f in [*parts, (last.observed, last.follows)]:
        for name in ("facts", "deliveries", "logs", "statements", "starts", "sends", "outbox"):
            setattr(observed, name, [*getattr(observed, name), *getattr(o, name)])
        for name in ("facts", "logs", "acts"):
            setattr(follows, name, [*getattr(follows, name), *getattr(f, name)])
        follows.attributes = f.attributes or follows.attributes
    return replace(last, observed=observed, follows=follows)
