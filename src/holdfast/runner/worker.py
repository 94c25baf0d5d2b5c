"""The worker: claims due runs, holds their leases, and gives each a turn.

Its loops: *claim* takes what is due, woken by notifications and otherwise by the next due time or the poll; *heartbeat*
extends the leases; *watch* notices what other processes did; *reap* frees the runs of dead workers; *note* shows
steps that take their time; *outbox* (``outbox.py``) delivers what runs tell the world. A pass (``app.tick``, the test
harness) does the same once, without the loops.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.core.model import TaskKind
from holdfast.errors import StoreError
from holdfast.kernel.attempt import current_attempt
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import overdue
from holdfast.ports import Randomness
from holdfast.runner import report
from holdfast.runner.advancer import Advancer
from holdfast.runner.attempts import Ports
from holdfast.runner.cache import MachineCache
from holdfast.runner.committer import Committer
from holdfast.runner.config import WorkerConfig
from holdfast.runner.foresight import foreseen
from holdfast.runner.identity import worker_id
from holdfast.runner.idle_turns import IdleTurns
from holdfast.runner.looper import Looper
from holdfast.runner.outbox import Courier
from holdfast.runner.stalls import StallWatch
from holdfast.runner.turn import Budget, Tools, Turn, record_heartbeats
from holdfast.runner.units import KeeperTurn, Memory, UnitTurn, with_units
from holdfast.store.protocol import (
    FIRST_EPOCH,
    SUSPECT_LOSSES,
    Advance,
    Claim,
    Claimant,
    ClaimRequest,
    Commit,
    Committed,
    Created,
    Fact,
    Finish,
    Follows,
    Freed,
    Held,
    Log,
    Mailbag,
    NewEvent,
    NewRun,
    Park,
    RunRecord,
    Sent,
    Signal,
    Store,
    TaskRef,
    Verdict,
    WorkerCard,
)

_log = logging.getLogger("holdfast")

_UNREAD = Mailbag((), complete=True, last=0)
"""Of a unit that was taken by an advance: nobody has looked into the mailbox."""

# The most that is claimed at once: a small bite keeps claims short and leaves work to other processes.
_LARGEST_CLAIM = 200
_NOTE_SECONDS = 0.5
_BEATS_PER_LEASE = 3
# How long a full worker waits for more room before it claims into what little there is.
_ROOM_SECONDS = 0.02


def _outside_steps() -> contextvars.Context | None:
    """The context of a turn. A step that starts a run or sends an event begins turns that are no part of it."""
    if current_attempt.get() is None:
        return None
    context = contextvars.copy_context()
    context.run(current_attempt.set, None)
    return context


_Place = tuple[int, int]
"""Run and unit."""
_AnyTurn = Turn | UnitTurn | KeeperTurn


class Worker:
    """Runs the registered workflows of one app."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hub: Hub,
        ports: Ports,
        random: Randomness,
        config: WorkerConfig,
        app: str = "holdfast",
    ) -> None:
        """``app``: the name of the program, for the worker's id."""
        host, pid = platform.node(), os.getpid()
        self.id = worker_id(app, host, pid, random)
        self.card = WorkerCard(self.id, host, pid, config.queues, config.concurrency)
        self.lease_ms = config.lease_ms
        self._store = store
        self._registry = registry
        self._hub = hub
        self._ports = ports
        self._config = config
        self._cache = MachineCache(config.cache)
        claimant = Claimant(self.id, config.lease_ms, config.queues)
        self._tools = Tools(
            store,
            Committer(store, random, hub.in_company, self._is_alone),
            Advancer(store, random, hub.in_company, claimant, self._reserve_units, self._advanced, self._take_units),
            ports,
            random,
            config.lease_ms,
            tell=self._tell,
            later=partial(self._later, what="roll back the transaction of a step"),
            posted=hub.posted,
            beat_within=self._beat_within,
            keep_late=self._keep_late,
            adopt=self._adopt,
            begin=self._begin_adopted,
            strict=config.replay == "strict",
        )
        self._courier = Courier(store, registry, ports, random, self.id, config.poll_ms)
        self._afterwards: set[asyncio.Task[None]] = set()
        self._turns: dict[_Place, _AnyTurn] = {}
        self._tasks: dict[_Place, asyncio.Task[None]] = {}
        self._memories: dict[int, Memory] = {}
        """Of runs that are made of units, while any of those is held."""
        self._idle_turns = IdleTurns(lambda: asyncio.get_running_loop().time())
        self._reserved = 0
        """Places for what starts and events on their way may bring."""
        self._claiming = 0
        """Places for what claims on their way may bring: none of them, most of the time."""
        self._next_due: int | None = None
        self._seen_version: int | None = None
        self._accepting = False
        self._by_hand = False
        self._enrolled = False
        self._abandoned = False
        self._strangers: Collection[tuple[int, int, int]] = ()
        self._given_back: set[tuple[int, int, int]] = set()
        """Strangers whose claim may yet be answered: they are not this worker's any more."""
        self._room = asyncio.Event()
        self._bite = min(_LARGEST_CLAIM, max(1, config.concurrency // 5))
        self._leave_hub: Callable[[], None] = lambda: None
        self._stalls = None if config.stall_ms is None else StallWatch(ports.spawn, config.stall_ms)
        self._claims = Looper("claim", self._claim_step, random)
        self._heartbeats = Looper("heartbeat", self._heartbeat_step, random)
        self._notes = Looper("note", self._note_step, random)
        self._loops = [
            self._claims,
            self._heartbeats,
            Looper("watch", self._watch_step, random),
            Looper("reap", self._reap_step, random),
            self._notes,
        ]

    # --- life

    def start(self) -> None:
        self._leave_hub = self._hub.join(self._work_at, self._signalled, self._courier.wake)
        self._accepting = True
        for loop in self._loops:
            loop.start()
        if self._stalls is not None:
            self._stalls.start()
        if self._registry.outbox is not None:
            self._courier.start()

    def start_by_hand(self) -> None:
        """Keep what it holds, but take nothing by itself: see ``start_units``."""
        self._leave_hub = self._hub.join(lambda _: None, self._signalled, self._courier.wake)
        self._accepting = True
        self._by_hand = True
        self._heartbeats.start()
        self._notes.start()

    async def stop(self, drain_ms: int | None = None) -> None:
        """Take nothing new, let steps in flight end within the bound, give every lease back."""
        self._accepting = False
        self._stop_turns()
        await self._claims.stop()
        self._stop_turns()  # also those that a claim under way has brought
        drain = (self._config.drain_ms if drain_ms is None else drain_ms) / 1000
        await asyncio.gather(self._wait_for_turns(drain), self._courier.stop(drain))
        await self._note_running()
        for loop in self._loops:
            await loop.stop()
        await self._record_heartbeats()
        self._stop_watching()
        await self._give_back()
        self._leave_hub()
        self._cache.clear()

    def _stop_watching(self) -> None:
        if self._stalls is not None:
            self._stalls.stop()

    def _stop_turns(self) -> None:
        for turn in list(self._turns.values()):
            turn.stop()

    async def _wait_for_turns(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=seconds)

    async def _note_running(self) -> None:
        """Store the log lines of attempts that are cancelled next."""
        notes = [note for turn in self._turns.values() if (note := turn.note()) is not None]
        if notes:
            await asyncio.wait(notes, timeout=_NOTE_SECONDS)

    async def _give_back(self) -> None:
        """Give back all that the store says is held, known here or not: a claim may have been cut off half-way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._afterwards, return_exceptions=True)
        try:
            held = await self._store.heartbeat(self.id, self.lease_ms)
            if held:
                await self._store.release([TaskRef(h.run, h.unit, self.id, h.epoch) for h in held])
            if self._enrolled:
                await self._store.dismiss(self.id)
                self._enrolled = False
        except StoreError as error:
            _log.warning("could not give the leases back, they will run out: %s", error)

    def abandon(self) -> None:
        """Die as a killed process does: nothing is written, nothing is given back. For crash tests."""
        self._accepting = False
        self._abandoned = True
        for turn in self._turns.values():
            turn.signal(None)
        for task in self._tasks.values():
            task.cancel()
        self._tools.committer.abandon()
        self._tools.advancer.abandon()
        self._courier.abandon()
        self._stop_watching()
        self._leave_hub()
        self._cache.clear()

    # --- runs that are given to this worker without a look for work

    def reserve(self, new: NewRun) -> int:
        """Whether a run that is about to be created may begin here at once: how many places are kept for it.

        Then it has this worker as its owner, and ``begin`` or ``cancel_reservation`` must follow.
        """
        if new.queue not in self._config.queues or not self._reserve(new.workflow):
            return 0
        new.owner, new.lease_ms = self.id, self.lease_ms
        if new.units:
            new.room = 1 + self._reserve_units(sum(unit.missing == 0 for unit in new.units) - 1)
        return max(1, new.room)

    def _reserve(self, workflow: str) -> bool:
        if not self._accepting or workflow not in self._registry.runnable():
            return False
        if self._free() <= 0:
            return False
        self._reserved += 1
        return True

    async def send(self, event: NewEvent) -> Sent:
        """Send an event. A run that it wakes goes on here at once, if there is room."""
        if not self._reserve(event.workflow):
            [sent] = await self._store.send([event])
            return sent
        event.claimant = Claimant(self.id, self.lease_ms, self._config.queues)
        turn = self._foresee(event)
        try:
            [sent] = await self._store.send([event])
        except BaseException as error:
            self._give_up(turn)
            if isinstance(error, asyncio.CancelledError):
                self._later(self._give_back_unheard_of(event), "look for a run that an event may have woken")
            raise
        finally:
            self._reserved -= 1
        if turn is not None and not turn.comes_true(sent):
            self._give_up(turn)
            turn = None
        self._take(turn.claim if turn is not None else sent.claim, turn)
        return sent

    def _foresee(self, event: NewEvent) -> Turn | None:
        """The turn that an event is going to cause, if its run rests here and nothing else is being written.

        Otherwise commits go along with each other, which costs less than each with its event.
        """
        rested = self._cache.find(event.workflow, event.instance_id)
        now = self._ports.now_ms()
        if rested is None or self._reserved > 1 or self._tools.committer.busy or not rested.is_ready_for(event, now):
            return None
        self._cache.pop(rested.run.run)
        return foreseen(event, now, rested, self.id, self._registry.get(event.workflow), self._tools)

    def _give_up(self, turn: Turn | None) -> None:
        if turn is not None:
            turn.drop()
            self._hub.ended(turn.task.run, None)  # whatever has become of the run: whoever waits looks

    async def _give_back_unheard_of(self, event: NewEvent) -> None:
        """Who sent it did not wait for the answer. If it has woken its run, that is held here, and nobody knows."""
        turns = dict(self._turns)
        held = await self._hear(lambda: self._store.heartbeat(self.id, self.lease_ms))
        self._take_held(turns, held)
        run = await self._store.find(event.workflow, event.instance_id)
        if run is not None:
            await self._release(h for h in held if (h.run, h.unit) == (run.run, 0) and (h.run, 0) not in self._turns)

    def _take(self, claim: Claim | None, turn: Turn | None) -> None:
        """What an event woke. The last turn of it may not have been put away yet."""
        if turn is not None and turn.over:
            self._forget(turn)
            asyncio.get_running_loop().call_soon(turn.drop)  # those who wait for its end come first
        elif not self._accepting:
            self._give_up(turn)  # it stops, and gives back all it holds at the end
        elif claim is not None:
            self._begin(claim, self._tools, turn=turn)

    def _adopt(self, new: NewRun) -> int:
        return 0 if new.delay_ms or not new.eager else self.reserve(new)

    def _begin_adopted(self, adopted: int, births: Sequence[Created]) -> None:
        self._reserved -= adopted
        for created in births:
            self.begin(created, 0)

    def cancel_reservation(self, places: int = 1) -> None:
        self._reserved -= places

    def begin(self, created: Created, places: int, plan: Sequence[Fact] = ()) -> None:
        """A run that was born claimed by this worker, itself or units of it. ``plan``: if it is at hand."""
        self._reserved -= places
        if not self._accepting:
            return  # it stops, and gives back all it holds at the end
        bag = Mailbag(created.mail, complete=True, last=len(created.mail))
        for unit in created.units or (0,):
            if (created.run.run, unit) in self._turns:
                continue  # of two that started the same one, one was cut off
            task = TaskRef(created.run.run, unit, self.id, FIRST_EPOCH if unit else created.epoch)
            self._begin(Claim(task, TaskKind.RUN, lost=False, run=created.run, mailbag=bag), self._tools, plan)

    # --- units that become due by what this worker writes

    def _reserve_units(self, most: int) -> int:
        places = max(0, min(most, self._free())) if self._accepting and not self._by_hand else 0
        self._reserved += places
        return places

    def _advanced(self, advance: Advance) -> None:
        memory = self._memories.get(advance.task.run)
        if memory is not None:
            for fact in advance.results:
                memory.remember(fact)
            report.steps_failed(memory.run, advance.results)

    def _take_units(self, places: int, tasks: Sequence[TaskRef], more: bool) -> None:
        self._reserved -= places
        for task in tasks:
            memory = self._memories.get(task.run)
            if memory is not None:
                claim = Claim(task, TaskKind.RESUME, lost=False, run=memory.run, mailbag=_UNREAD)
                self._begin(claim, self._tools)
        if more:
            self._hub.work()

    # --- turns

    def _begin(self, claim: Claim, tools: Tools, plan: Sequence[Fact] = (), turn: Turn | None = None) -> None:
        """``turn``: if it is there already."""
        place = claim.task[:2]
        if self._is_late(claim.task):
            self._give_up(turn)
            return
        known = self._turns.get(place)
        if known is not None:  # its lease ran out, and it came back
            known.signal(None)
        begun = turn or self._turn_of(claim, tools, plan)
        if claim.run.expires_at is not None:
            self._work_at(claim.run.expires_at)
        self._turns[place] = begun
        self._tasks[place] = asyncio.get_running_loop().create_task(self._run(begun), context=_outside_steps())

    def _is_late(self, task: TaskRef) -> bool:
        """The answer came so late that it was taken for lost, or another claim of the same run came before it."""
        if self._given_back and (*task[:2], task.epoch) in self._given_back:
            return True
        known = self._turns.get(task[:2])
        return known is not None and known.task.epoch >= task.epoch

    def _turn_of(self, claim: Claim, tools: Tools, plan: Sequence[Fact]) -> _AnyTurn:
        definition = self._registry.get(claim.run.workflow)
        if definition.unit_driver is None:
            return Turn(tools, claim, definition, self._cache.take(claim.task.run, claim.task.epoch), plan)
        run, unit = claim.task[:2]
        memory = self._memories.get(run)
        if memory is None:
            memory = self._memories[run] = Memory(claim.run, definition.unit_driver)
            for fact in plan:
                if fact.value is not None:
                    memory.open(fact.value, tools)
        memory.holders.add(unit)
        return UnitTurn(tools, claim, memory) if unit else KeeperTurn(tools, claim, memory)

    async def _run(self, turn: _AnyTurn) -> None:
        try:
            if self._idle_turns:
                await self._slow_down(turn)
            await turn.run()
        except Exception as error:
            await self._park(turn, error)
        finally:
            self._forget(turn)

    async def _slow_down(self, turn: _AnyTurn) -> None:
        """Wait before a turn of a run that does not get further, while its lease is kept."""
        try:
            await asyncio.sleep(self._idle_turns.pause_before(turn.task[:2]))
        except asyncio.CancelledError:
            if isinstance(turn, Turn):
                turn.drop()
            raise

    def _forget(self, turn: _AnyTurn) -> None:
        run, unit = place = turn.task[:2]
        if turn.idle:
            self._idle_turns.idle(turn.claim)
        elif self._idle_turns:
            self._idle_turns.forget(place)
        if self._turns.get(place) is turn:
            del self._turns[place], self._tasks[place]
            memory = self._memories.get(run)
            if memory is not None:
                memory.holders.discard(unit)
                if not memory.holders:
                    del self._memories[run]
        if turn.rested is not None:
            self._cache.put(turn.rested)
        if turn.finish is not None:
            self._ended(run, turn.finish)
        elif unit == 0 and turn.rested is None:
            self._hub.ended(run, None)  # it may have ended without this turn's knowledge: whoever waits looks
        if turn.due_at is not None:
            self._work_at(turn.due_at)
        if self._free() >= self._bite:
            self._room.set()
        if turn.suspect or turn.claim.run.losses >= SUSPECT_LOSSES:
            self._claims.wake()  # the next suspect may come

    def _ended(self, run: int, finish: Finish) -> None:
        """Whoever waits for the end learns of it; if another run comes after it, that it has to wait for that one."""
        if finish.next is None:
            self._hub.ended(run, finish)
        else:
            self._hub.ended(run, None)
            self._hub.work(finish.next.run_at)

    def _tell(self, committed: Committed) -> None:
        """A run reached others: whoever is here learns of it now."""
        if committed.started:
            self._hub.work()
        for sent in committed.sent:
            if sent.run is not None and sent.woken:
                self._hub.work()
                self._hub.signal(sent.run.run, Signal.MAIL)
        if committed.touched is not None:
            self._hub.touched(committed.touched)
        if committed.acted:
            self._hub.answered()

    def _later(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._afterwards.add(task)
        task.add_done_callback(partial(self._done_later, what))

    def _keep_late(self, run: RunRecord, results: Sequence[Fact], lines: Sequence[Log]) -> None:
        if not self._abandoned:
            what = f"store the last results and log lines of {report.named(run)}"
            self._later(self._add_late(run, results, lines), what)

    async def _add_late(self, run: RunRecord, results: Sequence[Fact], lines: Sequence[Log]) -> None:
        await self._store.add_late(run.run, results, lines)

    def _done_later(self, what: str, task: asyncio.Task[None]) -> None:
        self._afterwards.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("could not %s: %s", what, task.exception())

    async def _park(self, turn: _AnyTurn, error: Exception) -> None:
        """Something is wrong with the engine or the data: the run is set aside, and says why; the others go on."""
        run = turn.claim.run
        _log.error("run %s is parked after an unexpected error", report.named(run), exc_info=error)
        note = f"the engine failed on this run ({type(error).__name__}: {error}); resume it to try again"
        line = Log("error", "system", note[:2000], None, self._ports.now_ms())
        try:
            await self._tools.committer.commit(Commit(turn.task, follows=Follows(logs=[line], next=Park(note))))
            if turn.task.unit:
                await self._store.release([turn.task])  # the run is paused, and the unit is its again
        except Exception:
            _log.exception("could not park run %s", report.named(run))

    # --- claiming

    async def claim_due(self, limit: int, tools: Tools | None = None) -> int:
        """Claim what is due and begin its turns; how many."""
        request = ClaimRequest(
            owner=self.id,
            lease_ms=self.lease_ms,
            limit=limit,
            queues=self._config.queues,
            workflows=self._registry.runnable(),
            suspects=not any(turn.suspect for turn in self._turns.values()),
        )
        self._claiming += limit
        try:
            result = await self._store.claim(request)
        finally:
            self._claiming -= limit
        for claim in result.claims:
            self._begin(claim, tools or self._tools)
        for claim in result.overdue:
            await self._end_overdue(claim)
        self._next_due = result.next_due
        return len(result.claims) + len(result.overdue)

    async def _end_overdue(self, claim: Claim) -> None:
        """Its time has run out, whoever held it until now."""
        run = claim.run.run
        try:
            finish = await with_units(overdue(claim.run, self._ports.now_ms()), claim.run, self._tools)
            committed = await self._tools.committer.commit(Commit(claim.task, follows=Follows(next=finish)))
        finally:
            self._signalled(run, None)  # once it has ended: then the lines of its attempts can be kept
        if committed.verdict is Verdict.APPLIED:
            report.ended(claim.run, finish)
            self._ended(run, finish)
            self._tell(committed)

    async def start_units(self, run: RunRecord) -> list[str] | None:
        """Claim the units of a run that are due, and begin them: what people call them.

        None: only the run itself was due, and may have ended or opened other units by now.
        """
        request = ClaimRequest(
            self.id, self.lease_ms, max(0, self._free()), [run.queue], frozenset({run.workflow}), run=run.run
        )
        await self.reap()
        result = await self._store.claim(request)
        for claim in result.claims:
            self._begin(claim, self._tools)
        keeper = self._tasks.get((run.run, 0))
        units = [claim.task.unit for claim in result.claims if claim.task.unit]
        if keeper is not None:
            await asyncio.wait([keeper])
        if keeper is not None and not units:
            return None
        memory = self._memories.get(run.run)
        if memory is None:
            return []
        known = await memory.units(self._tools)
        return [known.key(unit) for unit in units]

    async def _claim_step(self) -> float:
        if self._free() < self._bite:
            await self._wait_for_room()
        room = self._free()
        if room <= 0:
            return 0.0
        claimed = await self.claim_due(min(room, _LARGEST_CLAIM))
        return self._pause_after(claimed, room)

    def _free(self) -> int:
        return self._config.concurrency - len(self._turns) - self._reserved - self._claiming

    def _is_alone(self) -> bool:
        """There is one turn, and no other is about to begin, unless a claim brings some."""
        return len(self._turns) + self._reserved <= 1

    async def _wait_for_room(self) -> None:
        """Let some runs end before claiming again: a transaction for each single place costs more than the work."""
        self._room.clear()
        alarm = asyncio.get_running_loop().call_later(_ROOM_SECONDS, self._room.set)
        try:
            await self._room.wait()
        finally:
            alarm.cancel()

    def _pause_after(self, claimed: int, room: int) -> float:
        poll = self._config.poll_ms / 1000
        if claimed == min(room, _LARGEST_CLAIM):
            return 0.0
        if self._next_due is None:
            return poll
        return min(poll, max(0.0, (self._next_due - self._ports.now_ms()) / 1000))

    def _work_at(self, due_at: int | None) -> None:
        """Work is due now (None) or at a time; the claim loop wakes if that is earlier than it thought."""
        if due_at is None or self._next_due is None or due_at < self._next_due:
            self._next_due = due_at
            self._claims.wake_at_most((due_at - self._ports.now_ms()) / 1000 if due_at is not None else 0.0)

    # --- the other loops

    def _signalled(self, run: int, signal: Signal | None) -> None:
        turn = self._turns.get((run, 0))
        if turn is not None:
            turn.signal(signal)
        elif signal is None:
            self._cache.drop(run)
        memory = self._memories.get(run) if signal is None else None
        for unit in list(memory.holders) if memory is not None else ():
            self._turns[run, unit].signal(None)

    async def _heartbeat_step(self) -> float:
        if self._accepting and not self._enrolled:
            await self._store.enroll(self.card, self.lease_ms)
            self._enrolled = True
        turns = dict(self._turns)
        held = await self._hear(lambda: self._store.heartbeat(self.id, self.lease_ms))
        self._take_held(turns, held)
        await self._give_back_strangers(held)
        return min(self._leases()) / _BEATS_PER_LEASE / 1000

    def _beat_within(self, lease_ms: int) -> None:
        self._heartbeats.wake_at_most(lease_ms / _BEATS_PER_LEASE / 1000)

    def _leases(self) -> list[int]:
        """The worker's lease, and those of held tasks that have their own."""
        turns = self._turns.values()
        own = (turn.lease_ms for turn in turns if isinstance(turn, Turn) and turn.lease_ms is not None)
        return [self.lease_ms, *own]

    @property
    def longest_lease_ms(self) -> int:
        """After this time without a heartbeat, every task held now is free again."""
        return max(self._leases())

    async def _hear(self, ask: Callable[[], Awaitable[list[Held]]]) -> list[Held]:
        """What others want of the runs held here. If the answer is lost, so is the news of mail: all look for some."""
        try:
            return await ask()
        except StoreError:
            for turn in list(self._turns.values()):
                turn.signal(Signal.MAIL)
            raise

    async def _give_back_strangers(self, held: Sequence[Held]) -> None:
        """Give back what is held in this worker's name and unknown to it at two heartbeats.

        A start or a claim whose answer got lost: this very heartbeat would keep it for ever.
        """
        strangers = {(h.run, h.unit, h.epoch): h for h in held if (h.run, h.unit) not in self._turns}
        lost = [h for key, h in strangers.items() if key in self._strangers]
        self._strangers = strangers.keys()
        if not self._reserved and not self._claiming and not self._by_hand:
            self._given_back.clear()  # no answer is on its way
        await self._release(lost)

    async def _release(self, lost: Iterable[Held]) -> None:
        tasks = [TaskRef(h.run, h.unit, self.id, h.epoch) for h in lost]
        self._given_back.update((task.run, task.unit, task.epoch) for task in tasks)
        if tasks:
            await self._store.release(tasks)
            self._claims.wake()

    def _take_held(self, turns: dict[_Place, _AnyTurn], held: Sequence[Held]) -> None:
        """Tell turns what others want of them, and those that are lost that they are."""
        by_place = {(h.run, h.unit): h for h in held}
        for place, turn in turns.items():
            found = by_place.get(place)
            if found is not None and found.epoch == turn.task.epoch:
                if found.signal:
                    turn.signal(found.signal)
            elif self._turns.get(place) is turn:
                turn.signal(None)

    async def _watch_step(self) -> float:
        """Another process wrote: there may be work, a signal for a run held here, or an end someone waits for."""
        version = await self._store.changed(self._seen_version)
        if version != self._seen_version:
            self._seen_version = version
            self._claims.wake()
            self._courier.wake()
            if self._turns:
                for held in await self._hear(lambda: self._store.signals(self.id)):
                    self._signalled(held.run, held.signal)
        return 0

    async def _reap_step(self) -> float:
        if await self.reap():
            self._claims.wake()
        return min(self._config.poll_ms, self.lease_ms) / 1000

    async def reap(self) -> int:
        freed = await self._store.reap(self._config.max_losses)
        if freed:
            await self._report_freed(freed)
        return len(freed)

    async def _report_freed(self, freed: Sequence[Freed]) -> None:
        try:
            runs = {run.run: run for run in await self._store.get([lost.run for lost in freed])}
        except StoreError as error:
            _log.warning("%d leases ran out; the names of their runs cannot be read: %s", len(freed), error)
            return
        for lost in freed:
            run = runs.get(lost.run)
            if run is None:
                continue
            if lost.parked:
                report.parked(run, (run.note or "").removeprefix("parked: "))
            else:
                name, losses = report.named(run), lost.losses
                _log.warning("the worker of run %s died or stalled (%d in a row); it is free again", name, losses)

    async def _note_step(self) -> float:
        for turn in list(self._turns.values()):
            if turn.waiting:
                turn.note()
        await self._record_heartbeats()
        return _NOTE_SECONDS

    async def _record_heartbeats(self) -> None:
        """The progress of all steps that run here, in one write."""
        heartbeats = [one for turn in list(self._turns.values()) for one in turn.heartbeats()]
        await record_heartbeats(self._store, heartbeats)

    # --- one pass

    async def run_pass(self, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Claim what is due now, once, and run it until it rests; how many runs."""
        self._leave_hub = self._hub.join(self._work_at, self._signalled, self._courier.wake)
        try:
            await self.reap()
            limit = self._config.concurrency if max_instances is None else max_instances
            claimed = 0
            if limit > 0:
                claimed = await self.claim_due(limit, replace(self._tools, budget=Budget(max_steps)))
            self._heartbeats.start()
            self._notes.start()
            while self._tasks:
                await asyncio.wait(list(self._tasks.values()))
            await self.deliver_due()
            return claimed
        finally:
            await self.stop(drain_ms=0)

    async def deliver_due(self) -> int:
        """Deliver the outbound events that are due; how many were tried."""
        return await self._courier.deliver_due()

    def blocked(self) -> bool:
        """Whether every held run waits for its steps (or none is held).

        Nothing happens unless a step ends or time passes.
        """
        return not self._afterwards and all(turn.waiting for turn in self._turns.values())

    @property
    def busy(self) -> int:
        return len(self._turns) + len(self._afterwards)
