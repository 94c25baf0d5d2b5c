"""The database of a simulation: the SQLite store in memory, as a simulated process that does one call at a time.

It also checks the promises that must hold at every moment: triggers report rows that were changed and may not change,
and each commit is compared with the fence as it was just before the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, cast

from holdfast.core.model import to_ms
from holdfast.store.protocol import Advance, Commit, Committed, Migrated, Store, TaskRef, Verdict
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.live import Live
from holdfast.testing.simulation.buffered_results import ResultWatch
from holdfast.testing.simulation.lease_watch import LeaseWatch
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.progress import ProgressWatch
from holdfast.testing.simulation.trace import Trace

_NOTIFYING = frozenset(
    {"create", "send", "pause", "resume", "terminate", "cancel", "restart", "commit", "advance", "release", "reap"}
)
"""Operations after which other processes are notified."""
_READS = frozenset({"load", "undelivered", "reply", "relations", "find", "get", "facts", "outbox"})
"""Operations that do not wait while a live transaction is open."""
_FENCED = frozenset({"commit", "advance"})
_CREATE_EFFECT_TABLE = "CREATE TABLE effect (instance TEXT, number INTEGER, key TEXT)"
_TRIGGERS = {
    "a fact was changed": ("UPDATE ON holdfast_fact", "old.state <> 7", "new.run", "new.key"),
    "a fact was deleted": ("DELETE ON holdfast_fact", "1", "old.run", "old.key"),
    "a fact was written to a run that had ended": (
        "INSERT ON holdfast_fact",
        "(SELECT completed_at FROM holdfast_run WHERE id = new.run) IS NOT NULL AND NOT adding_late()",
        "new.run",
        "new.key",
    ),
    "a fact was written to a paused run": (  # running nodes of a paused graph may end; no node may start
        "INSERT ON holdfast_fact",
        "(SELECT status FROM holdfast_run WHERE id = new.run AND (kind <> 'graph' OR new.state = 1)) = 'paused'",
        "new.run",
        "new.key",
    ),
    "a run that had ended was changed": (
        "UPDATE ON holdfast_run",
        "old.completed_at NOTNULL AND (new.status, new.output, new.error) IS NOT (old.status, old.output, old.error)",
        "new.id",
        "new.status",
    ),
    "an event was consumed twice": (
        "UPDATE ON holdfast_event",
        "old.consumed_by IS NOT NULL AND new.consumed_by IS NOT old.consumed_by",
        "new.run",
        "new.type",
    ),
    "a task was taken without a new epoch": (
        "UPDATE ON holdfast_task",
        "new.owner IS NOT NULL AND new.owner IS NOT old.owner AND new.epoch <= old.epoch",
        "new.run",
        "new.owner",
    ),
    "an epoch went back": ("UPDATE ON holdfast_task", "new.epoch < old.epoch", "new.run", "new.epoch"),
    "a task was taken from an owner whose lease had not expired": (
        "UPDATE ON holdfast_task",
        "new.owner <> old.owner AND min(old.lease_until, ifnull(old.expires_at, old.lease_until)) > simulated_now()",
        "new.run",
        "new.owner",
    ),
}
"""Violations that triggers report: statement, condition, run, detail."""


class _Store(SqliteStore):
    """A store whose schema is created once for all seeds: creating it takes longer than many a seed."""

    _image: ClassVar[bytes | None] = None

    def _check(self, connection: Any, migrate: bool) -> Migrated:
        if _Store._image is not None:
            connection.deserialize("main", _Store._image)
        migrated = super()._check(connection, migrate)
        if _Store._image is None:
            _Store._image = connection.serialize("main")
        return migrated


class SimulatedDatabase:
    def __init__(self, loop: SimulatedLoop, trace: Trace) -> None:
        self.process: Process = loop.start_process("database")
        self.listeners: dict[str, Callable[[], None]] = {}
        """Callbacks by process name, called when another process has written."""
        self.timed_out_transactions = 0
        """The number of live transactions that ended because they had no statement for too long."""
        self._clock = LoopClock(loop)
        self._store = _Store(None, clock=self._clock, spawn_thread=None)
        self._loop = loop
        self._trace = trace
        self._write_lock = asyncio.Lock()
        self._caller = "database"
        """The process whose call is being executed."""
        self._progress = ProgressWatch(self.rows)
        self._leases = LeaseWatch()
        self.results = ResultWatch(self.rows)

    @property
    def store(self) -> Store:
        """The store itself, for queries that are not part of the simulation."""
        return self._store

    async def open(self) -> None:
        await self._store.open()
        connection = self._connection
        connection.execute(_CREATE_EFFECT_TABLE)
        connection.create_scalar_function("broken", self._report_row, deterministic=False)
        connection.create_scalar_function("simulated_now", lambda: to_ms(self._clock.now()), 0)
        connection.create_scalar_function("adding_late", lambda: self.results.adding_late, 0)
        for number, (violation, (event, when, run, detail)) in enumerate(_TRIGGERS.items()):
            connection.execute(
                f"CREATE TEMP TRIGGER watch_{number} AFTER {event} WHEN {when} "
                f"BEGIN SELECT broken('{violation}', {run}, {detail}); END"
            )

        connection.create_scalar_function("granted", self._granted, deterministic=False)
        for event in ("INSERT", "UPDATE OF lease_until"):
            connection.execute(
                f"CREATE TEMP TRIGGER granted_by_{event[:6]} AFTER {event} ON holdfast_task "
                "WHEN new.lease_until IS NOT NULL BEGIN SELECT granted(new.run, new.unit, new.owner, new.epoch, "
                "new.lease_until - simulated_now()); END"
            )

        connection.create_scalar_function("terminated", self.results.terminated, deterministic=False)
        connection.execute(
            "CREATE TEMP TRIGGER terminated AFTER UPDATE OF status ON holdfast_run WHEN new.status = 'terminated' "
            "BEGIN SELECT terminated(run, owner, epoch) FROM holdfast_task "
            "WHERE run = new.id AND unit = 0 AND owner IS NOT NULL; END"
        )

    def watch_lease(self, owner: str, effect: tuple[str, int, str], lease_ms: int, *, safe: bool) -> None:
        """Watch the lease of a chain step that a worker calls, if the worker still owns the run."""
        instance, number, step = effect
        for row in self.rows(
            "SELECT t.run, t.unit, t.owner, t.epoch FROM holdfast_task AS t JOIN holdfast_run AS r ON r.id = t.run "
            "WHERE r.instance_id = ? AND r.number = ? AND t.owner = ?",
            instance,
            number,
            owner,
        ):
            for violation in self._leases.called(TaskRef(*row), step, lease_ms, safe=safe):
                self._violate(owner, violation)

    def _granted(self, run: int, unit: int, owner: str, epoch: int, ms: int) -> None:
        for violation in self._leases.granted(TaskRef(run, unit, owner, epoch), ms):
            self._violate(self._caller, violation)

    def close(self) -> None:
        """Close the connection, which ends the reference cycle between it and the functions that it calls."""
        writer = self._store._writer
        if writer is not None:
            writer.connection.close(force=True)

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Query the current rows, at once."""
        return list(self._connection.execute(sql, args))

    def call(
        self,
        caller: str,
        operation: str,
        args: tuple[Any, ...],
        options: dict[str, Any],
        on_done: Callable[[], None] = lambda: None,
    ) -> asyncio.Task[Any]:
        """Execute an operation in the database's process, also if the caller dies. Call ``on_done`` after it.

        As in a database file, all other writers wait while a live transaction is open.
        """
        task = self._loop.spawn(self.process, self._execute(caller, operation, args, options, on_done))
        task.add_done_callback(_retrieve_exception, context=self.process.context())
        return task

    def run_statement(self, statement: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a statement of the live transaction that has the write lock."""
        task = self._loop.spawn(self.process, statement)
        task.add_done_callback(_retrieve_exception, context=self.process.context())
        return task

    def roll_back(self, live: Live) -> None:
        """End a live transaction as the database does when a connection is lost."""
        self.process.context().run(live.request_end)

    @property
    def _connection(self) -> Any:
        writer = self._store._writer
        if writer is None:
            raise RuntimeError("the database is not open")
        return writer.connection

    async def _execute(
        self, caller: str, operation: str, args: tuple[Any, ...], options: dict[str, Any], on_done: Callable[[], None]
    ) -> Any:
        if operation == "begin":
            await self._begin(caller, *args)
            on_done()
            return None
        if operation in _READS or (operation == "commit" and args[0][0].observed.transaction is not None):
            # The commit of a live transaction has the write lock already.
            answer = await self._execute_checked(caller, operation, args, options)
            on_done()
        else:
            async with self._write_lock:
                answer = await self._execute_checked(caller, operation, args, options)
                on_done()
        if operation in _NOTIFYING and answer:
            for name, notify in list(self.listeners.items()):
                if name != caller:
                    notify()
        return answer

    async def _begin(self, caller: str, opened: Callable[[Live], None]) -> None:
        """Open a live transaction, which has the write lock until it ends."""
        await self._write_lock.acquire()
        live = cast("Live", await self._store.begin())
        end = live._end

        def end_and_unlock(answer: Committed) -> None:
            if live._end_answer is None:
                self._write_lock.release()
                self.timed_out_transactions += "had no statement" in answer.message
            end(answer)

        live._end = end_and_unlock  # type: ignore[method-assign]
        self._note(caller, "begins a transaction of a step")
        opened(live)

    async def _execute_checked(
        self, caller: str, operation: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Execute an operation, and report violations of promises by it."""
        self._caller = caller
        fences = self._fences(args[0]) if operation in _FENCED else []
        leased = self._leased_tasks() if operation == "reap" else []
        self.results.before(operation, args)
        try:
            answer = await getattr(self._store, operation)(*args, **options)
        except Exception as error:
            self._note(caller, f"{operation}: {type(error).__name__}: {error}")
            raise
        if operation == "commit" and not _is_ended_transaction(args[0], answer):
            self._check_fences(caller, args[0], fences, [result.verdict is not Verdict.LOST for result in answer])
            for commit in args[0]:
                self._leases.committed(commit.task)
        elif operation == "advance":
            self._check_fences(caller, args[0], fences, answer.applied)
        for violation in self.results.after(operation, args, answer):
            self._violate(caller, violation)
        for violation in self._progress.claimed(_claimed(operation, answer)):
            self._violate(caller, violation)
        for freed in answer if operation == "reap" else ():
            if (freed.run, freed.unit) in leased:
                self._violate(caller, f"run {freed.run} was freed although its owner's lease had not expired")
            for violation in self._leases.freed(freed.run, freed.unit):
                self._violate(caller, violation)
        self._note(caller, f"{operation} {_summary(operation, args, answer)}".rstrip())
        return answer

    def _fences(self, commits: Sequence[Commit | Advance]) -> list[bool]:
        """For each commit: True if its task, owner and epoch match."""
        sql = "SELECT owner, epoch FROM holdfast_task WHERE run = ? AND unit = ?"
        tasks = [commit.task for commit in commits]
        return [self.rows(sql, task.run, task.unit) == [(task.owner, task.epoch)] for task in tasks]

    def _leased_tasks(self) -> list[tuple[Any, ...]]:
        """Run and unit of the tasks whose lease has not expired."""
        now = to_ms(self._clock.now())
        return self.rows("SELECT run, unit FROM holdfast_task WHERE owner IS NOT NULL AND lease_until > ?", now)

    def _check_fences(
        self, caller: str, commits: Sequence[Commit | Advance], fences: list[bool], applied: Sequence[bool]
    ) -> None:
        for commit, holds, written in zip(commits, fences, applied, strict=True):
            if written and not holds:
                self._violate(caller, f"run {commit.task.run} was written by a worker that does not own it")
            elif holds and not written and len(commits) == 1:  # a commit of a batch may end the run of another one
                self._violate(caller, f"a commit to run {commit.task.run} by its owner was refused")

    def _report_row(self, violation: str, run: int, detail: Any) -> None:
        """SQL function that the triggers call."""
        self._violate(self._caller, f"{violation}: run {run}, {detail}")

    def _violate(self, caller: str, violation: str) -> None:
        self._trace.violate(self._loop.time(), caller, violation)

    def _note(self, process: str, text: str) -> None:
        self._trace.add(self._loop.time(), process, text)


def _claimed(operation: str, answer: Any) -> Sequence[TaskRef]:
    """Tasks that a worker owns from this answer of the store on."""
    match operation:
        case "claim":
            return [claim.task for claim in answer.claims]
        case "advance":
            return cast("Sequence[TaskRef]", answer.claimed)
        case _:
            return ()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved: if the caller died, asyncio would report it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _is_ended_transaction(commits: Sequence[Commit], answers: Sequence[Committed]) -> bool:
    """True if the commit was rejected because its live transaction had already ended."""
    return commits[0].observed.transaction is not None and answers[0].verdict is Verdict.REJECTED


def _summary(operation: str, args: tuple[Any, ...], answer: Any) -> str:
    match operation:
        case "commit":
            return "; ".join(_commit_summary(commit, done) for commit, done in zip(args[0], answer, strict=True))
        case "claim":
            return ", ".join(f"run {c.task.run} epoch {c.task.epoch}" for c in [*answer.claims, *answer.overdue])
        case "create":
            return ", ".join(f"{c.run.pid} (run {c.run.run}, {c.result})" for c in answer)
        case "send":
            return ", ".join(f"{e.type} to {e.instance_id}" for e in args[0])
        case "pause" | "resume" | "terminate" | "cancel" | "restart":
            return str(args[1])
        case "reap":
            return ", ".join(f"run {f.run} ({f.losses} losses)" for f in answer)
        case "heartbeat" | "fetch_signals":
            return ", ".join(f"run {h.run} epoch {h.epoch} signal {int(h.signal)}" for h in answer)
        case _:
            return ""


def _commit_summary(commit: Commit, done: Committed) -> str:
    facts = ", ".join(f"{'+' if f.ok else '-'}{f.key}" for f in [*commit.observed.facts, *commit.following.facts])
    operations = ", ".join(type(recorded.operation).__name__ for recorded in commit.following.operations)
    after = commit.following.next
    parts = [facts, operations, "" if after is None else type(after).__name__.lower()]
    return f"run {commit.task.run} epoch {commit.task.epoch} [{'; '.join(p for p in parts if p)}] {done.verdict}"
