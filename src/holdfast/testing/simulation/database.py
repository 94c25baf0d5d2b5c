"""The database of a simulation: the real SQL, in memory, as a process of its own that does one thing at a time.

It is also where promises are watched as they are kept or broken: a few triggers tell of rows that may not change, and
each commit is compared with the fence as it was just before.
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

_TOLD = frozenset(
    {"create", "send", "pause", "resume", "terminate", "cancel", "restart", "commit", "advance", "release", "reap"}
)
"""What other processes may want to hear of."""
_READS = frozenset({"load", "undelivered", "reply", "relations", "find", "get", "facts", "outbox"})
"""What does not wait while a step has a transaction open."""
_FENCED = frozenset({"commit", "advance"})
_EFFECTS = "CREATE TABLE effect (instance TEXT, number INTEGER, key TEXT)"
_WATCHES = {
    "a fact was changed": ("UPDATE ON holdfast_fact", "old.state <> 7", "new.run", "new.key"),
    "a fact was deleted": ("DELETE ON holdfast_fact", "1", "old.run", "old.key"),
    "a fact was written to a run that had ended": (
        "INSERT ON holdfast_fact",
        "(SELECT completed_at FROM holdfast_run WHERE id = new.run) IS NOT NULL AND NOT adding_late()",
        "new.run",
        "new.key",
    ),
    "a fact was written to a paused run": (  # nodes of a graph that run go on to their end, and none starts
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
    "a task was taken from a holder whose lease had not run out": (
        "UPDATE ON holdfast_task",
        "new.owner <> old.owner AND min(old.lease_until, ifnull(old.expires_at, old.lease_until)) > simulated_now()",
        "new.run",
        "new.owner",
    ),
}


class _Store(SqliteStore):
    """Its schema is made once for all seeds: that takes longer than many a seed's work."""

    _image: ClassVar[bytes | None] = None

    def _check(self, connection: Any, migrate: bool) -> Migrated:
        if _Store._image is not None:
            connection.deserialize("main", _Store._image)
        found = super()._check(connection, migrate)
        if _Store._image is None:
            _Store._image = connection.serialize("main")
        return found


class SimulatedDatabase:
    def __init__(self, loop: SimulatedLoop, trace: Trace) -> None:
        self.process: Process = loop.start_process("database")
        self.listeners: dict[str, Callable[[], None]] = {}
        """Of each process, told when another has written."""
        self.given_up = 0
        """Transactions of steps that nobody went on with for too long."""
        self._clock = LoopClock(loop)
        self._store = _Store(None, clock=self._clock, spawn_thread=None)
        self._loop = loop
        self._trace = trace
        self._turn = asyncio.Lock()
        self._now_by = "database"
        self._progress = ProgressWatch(self.rows)
        self._leases = LeaseWatch()
        self.results = ResultWatch(self.rows)

    @property
    def store(self) -> Store:
        """The store itself, for looks that are no part of the simulation."""
        return self._store

    async def open(self) -> None:
        await self._store.open()
        connection = self._connection
        connection.execute(_EFFECTS)
        connection.create_scalar_function("broken", self._broken, deterministic=False)
        connection.create_scalar_function("simulated_now", lambda: to_ms(self._clock.now()), 0)
        connection.create_scalar_function("adding_late", lambda: self.results.adding_late, 0)
        for number, (promise, (event, when, run, detail)) in enumerate(_WATCHES.items()):
            connection.execute(
                f"CREATE TEMP TRIGGER watch_{number} AFTER {event} WHEN {when} "
                f"BEGIN SELECT broken('{promise}', {run}, {detail}); END"
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

    def called_by(self, owner: str, effect: tuple[str, int, str], lease_ms: int, *, safe: bool) -> None:
        """Watch the lease of a chain step that a worker calls, if the worker still holds the run."""
        instance, number, step = effect
        for row in self.rows(
            "SELECT t.run, t.unit, t.owner, t.epoch FROM holdfast_task AS t JOIN holdfast_run AS r ON r.id = t.run "
            "WHERE r.instance_id = ? AND r.number = ? AND t.owner = ?",
            instance,
            number,
            owner,
        ):
            for broken in self._leases.called(TaskRef(*row), step, lease_ms, safe=safe):
                self._broken_by(owner, broken)

    def _granted(self, run: int, unit: int, owner: str, epoch: int, ms: int) -> None:
        for broken in self._leases.granted(TaskRef(run, unit, owner, epoch), ms):
            self._broken_by(self._now_by, broken)

    def close(self) -> None:
        """Or the connection keeps what it calls, and that keeps the connection."""
        writer = self._store._writer
        if writer is not None:
            writer.connection.close(force=True)

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """A look at the rows as they are."""
        return list(self._connection.execute(sql, args))

    def ask(
        self,
        who: str,
        operation: str,
        args: tuple[Any, ...],
        options: dict[str, Any],
        then: Callable[[], None] = lambda: None,
    ) -> asyncio.Task[Any]:
        """Do it in the database's process, whatever becomes of who asks. ``then`` is called when it is done.

        As on a file: while a step has a transaction open, all others that want to write wait.
        """
        task = self._loop.spawn(self.process, self._do(who, operation, args, options, then))
        task.add_done_callback(_heard, context=self.process.context())
        return task

    def within(self, statement: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a statement of a step's own transaction, whose turn it is."""
        task = self._loop.spawn(self.process, statement)
        task.add_done_callback(_heard, context=self.process.context())
        return task

    def give_up(self, live: Live) -> None:
        """As the database does when a connection is gone."""
        self.process.context().run(live.request_end)

    @property
    def _connection(self) -> Any:
        writer = self._store._writer
        if writer is None:
            raise RuntimeError("the database is not open")
        return writer.connection

    async def _do(
        self, who: str, operation: str, args: tuple[Any, ...], options: dict[str, Any], then: Callable[[], None]
    ) -> Any:
        if operation == "begin":
            await self._begin(who, *args)
            then()
            return None
        if operation in _READS or (operation == "commit" and args[0][0].observed.transaction is not None):
            answer = await self._watched(who, operation, args, options)  # such a commit has its turn
            then()
        else:
            async with self._turn:
                answer = await self._watched(who, operation, args, options)
                then()
        if operation in _TOLD and answer:
            for name, tell in list(self.listeners.items()):
                if name != who:
                    tell()
        return answer

    async def _begin(self, who: str, opened: Callable[[Live], None]) -> None:
        """A transaction for a step: nobody else has a turn before it is over."""
        await self._turn.acquire()
        live = cast("Live", await self._store.begin())
        end = live._end

        def end_turn(answer: Committed) -> None:
            if live._end_answer is None:
                self._turn.release()
                self.given_up += "had no statement" in answer.message
            end(answer)

        live._end = end_turn  # type: ignore[method-assign]
        self._note(who, "begins a transaction of a step")
        opened(live)

    async def _watched(self, who: str, operation: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Do it, and look whether it may be done."""
        self._now_by = who
        fences = self._fences(args[0]) if operation in _FENCED else []
        held = self._held() if operation == "reap" else []
        self.results.before(operation, args)
        try:
            answer = await getattr(self._store, operation)(*args, **options)
        except Exception as error:
            self._note(who, f"{operation}: {type(error).__name__}: {error}")
            raise
        if operation == "commit" and not _is_given_up(args[0], answer):
            self._check_fences(who, args[0], fences, [one.verdict is not Verdict.LOST for one in answer])
            for one in args[0]:
                self._leases.committed(one.task)
        elif operation == "advance":
            self._check_fences(who, args[0], fences, answer.applied)
        for lost in self.results.after(operation, args, answer):
            self._broken_by(who, lost)
        for spinning in self._progress.claimed(_claimed(operation, answer)):
            self._broken_by(who, spinning)
        for freed in answer if operation == "reap" else ():
            if (freed.run, freed.unit) in held:
                self._broken_by(who, f"run {freed.run} was freed although its holder's lease had not run out")
            for broken in self._leases.freed(freed.run, freed.unit):
                self._broken_by(who, broken)
        self._note(who, f"{operation} {_shown(operation, args, answer)}".rstrip())
        return answer

    def _fences(self, commits: Sequence[Commit | Advance]) -> list[bool]:
        """Of each, whether it may write."""
        sql = "SELECT owner, epoch FROM holdfast_task WHERE run = ? AND unit = ?"
        tasks = [one.task for one in commits]
        return [self.rows(sql, task.run, task.unit) == [(task.owner, task.epoch)] for task in tasks]

    def _held(self) -> list[tuple[Any, ...]]:
        """Whose leases have not run out."""
        now = to_ms(self._clock.now())
        return self.rows("SELECT run, unit FROM holdfast_task WHERE owner IS NOT NULL AND lease_until > ?", now)

    def _check_fences(
        self, who: str, commits: Sequence[Commit | Advance], fences: list[bool], applied: Sequence[bool]
    ) -> None:
        for one, holds, done in zip(commits, fences, applied, strict=True):
            if done and not holds:
                self._broken_by(who, f"run {one.task.run} was written by somebody who does not hold it")
            elif holds and not done and len(commits) == 1:  # of several, one may have ended another
                self._broken_by(who, f"run {one.task.run} was refused to who holds it")

    def _broken(self, promise: str, run: int, detail: Any) -> None:
        self._broken_by(self._now_by, f"{promise}: run {run}, {detail}")

    def _broken_by(self, who: str, what: str) -> None:
        self._trace.violate(self._loop.time(), who, what)

    def _note(self, who: str, what: str) -> None:
        self._trace.add(self._loop.time(), who, what)


def _claimed(operation: str, answer: Any) -> Sequence[TaskRef]:
    """The tasks that an answer of the store hands to a worker."""
    match operation:
        case "claim":
            return [claim.task for claim in answer.claims]
        case "advance":
            return cast("Sequence[TaskRef]", answer.claimed)
        case _:
            return ()


def _heard(task: asyncio.Task[Any]) -> None:
    """Who asked may be dead: then nobody else looks at the error."""
    if not task.cancelled():
        task.exception()


def _is_given_up(commits: Sequence[Commit], answers: Sequence[Committed]) -> bool:
    """It was to be written in a transaction that is over."""
    return commits[0].observed.transaction is not None and answers[0].verdict is Verdict.REJECTED


def _shown(operation: str, args: tuple[Any, ...], answer: Any) -> str:
    match operation:
        case "commit":
            return "; ".join(_commit(one, done) for one, done in zip(args[0], answer, strict=True))
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


def _commit(one: Commit, done: Committed) -> str:
    facts = ", ".join(f"{'+' if f.ok else '-'}{f.key}" for f in [*one.observed.facts, *one.following.facts])
    acts = ", ".join(type(act.operation).__name__ for act in one.following.operations)
    after = one.following.next
    parts = [facts, acts, "" if after is None else type(after).__name__.lower()]
    return f"run {one.task.run} epoch {one.task.epoch} [{'; '.join(p for p in parts if p)}] {done.verdict}"
