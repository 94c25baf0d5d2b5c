"""The worker: claims due runs, holds their leases, and gives each a turn.

Its loops: *claim* takes what is due, woken by notifications and otherwise by the next due time or the poll; *heartbeat*
extends the leases; *watch* notices what other processes did; *reap* frees the runs of dead workers; *note* shows
steps that take their time. A pass (``app.tick``, the test harness) does the same once, without the loops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.model import TaskKind
from holdfast.errors import StoreError
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import overdue
from holdfast.ports import Randomness
from holdfast.runner.attempts import Ports
from holdfast.runner.cache import MachineCache
from holdfast.runner.committer import Committer
from holdfast.runner.config import WorkerConfig
from holdfast.runner.looper import Looper
from holdfast.runner.turn import Budget, Tools, Turn
from holdfast.store.protocol import (
    SUSPECT_LOSSES,
    Claim,
    Claimant,
    ClaimRequest,
    Commit,
    Committed,
    Created,
    Finish,
    Follows,
    Held,
    Log,
    Mailbag,
    NewRun,
    Park,
    Signal,
    Store,
    TaskRef,
    Verdict,
    WorkerCard,
)

_log = logging.getLogger("holdfast")

# The most that is claimed at once: a small bite keeps claims short and leaves work to other processes.
_LARGEST_CLAIM = 200
_NOTE_SECONDS = 0.5
# How long a full worker waits for more room before it claims into what little there is.
_ROOM_SECONDS = 0.02


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
    ) -> None:
        self.id = random.uuid4().hex
        self.card = WorkerCard(self.id, platform.node(), os.getpid(), config.queues, config.concurrency)
        self.lease_ms = config.lease_ms
        self._store = store
        self._registry = registry
        self._hub = hub
        self._ports = ports
        self._config = config
        self._cache = MachineCache(config.cache)
        self._tools = Tools(
            store,
            Committer(store, random, hub.in_company),
            ports,
            random,
            tell=self._tell,
            later=self._later,
            adopt=self._adopt,
            begin=self._begin_adopted,
        )
        self._afterwards: set[asyncio.Task[None]] = set()
        self._turns: dict[int, Turn] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._reserved = 0
        self._next_due: int | None = None
        self._seen_version: int | None = None
        self._accepting = False
        self._enrolled = False
        self._strangers: Collection[tuple[int, int]] = ()
        self._room = asyncio.Event()
        self._bite = min(_LARGEST_CLAIM, max(1, config.concurrency // 5))
        self._leave_hub: Callable[[], None] = lambda: None
        self._claims = Looper("claim", self._claim_step, random)
        self._heartbeats = Looper("heartbeat", self._heartbeat_step, random)
        self._loops = [
            self._claims,
            self._heartbeats,
            Looper("watch", self._watch_step, random),
            Looper("reap", self._reap_step, random),
            Looper("note", self._note_step, random),
        ]

    # --- life

    def start(self) -> None:
        self._leave_hub = self._hub.join(self._work_at, self._signalled)
        self._accepting = True
        for loop in self._loops:
            loop.start()

    async def stop(self, drain_ms: int | None = None) -> None:
        """Take nothing new, let steps in flight end within the bound, give every lease back."""
        self._accepting = False
        self._stop_turns()
        await self._claims.stop()
        self._stop_turns()  # also those that a claim under way has brought
        await self._wait_for_turns((self._config.drain_ms if drain_ms is None else drain_ms) / 1000)
        for loop in self._loops:
            await loop.stop()
        await self._give_back()
        self._leave_hub()
        self._cache.clear()

    def _stop_turns(self) -> None:
        for turn in list(self._turns.values()):
            turn.stop()

    async def _wait_for_turns(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=seconds)

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
        for turn in self._turns.values():
            turn.signal(None)
        for task in self._tasks.values():
            task.cancel()
        self._tools.committer.abandon()
        self._leave_hub()
        self._cache.clear()

    # --- runs that are given to this worker without a look for work

    def reserve(self, workflow: str, queue: str) -> bool:
        """Whether a run that is about to be created may begin here at once.

        Then ``begin`` or ``cancel_reservation`` must follow.
        """
        return queue in self._config.queues and self._reserve(workflow)

    def claimant(self, workflow: str) -> Claimant | None:
        """Who takes a run if an event wakes it. Then ``take`` or ``cancel_reservation`` must follow."""
        if not self._reserve(workflow):
            return None
        return Claimant(self.id, self.lease_ms, self._config.queues)

    def _reserve(self, workflow: str) -> bool:
        if not self._accepting or workflow not in self._registry.runnable():
            return False
        if len(self._turns) + self._reserved >= self._config.concurrency:
            return False
        self._reserved += 1
        return True

    def take(self, claim: Claim) -> None:
        """A run that an event woke, claimed for this worker. Its last turn may not have been put away yet."""
        self._reserved -= 1
        if self._accepting:
            self._begin(claim, self._tools)

    def _adopt(self, new: NewRun) -> bool:
        if new.delay_ms or not new.eager or not self.reserve(new.workflow, new.queue):
            return False
        new.owner, new.lease_ms = self.id, self.lease_ms
        return True

    def _begin_adopted(self, adopted: int, births: Sequence[Created]) -> None:
        self._reserved -= adopted - len(births)
        for created in births:
            self.begin(created)

    def cancel_reservation(self) -> None:
        self._reserved -= 1

    def begin(self, created: Created) -> None:
        """A run that was born claimed by this worker."""
        self._reserved -= 1
        if not self._accepting:
            return  # it stops, and gives back all it holds at the end
        if created.run.run in self._turns:
            return  # of two that started the same one, one was cut off
        task = TaskRef(created.run.run, 0, self.id, created.epoch)
        bag = Mailbag(created.mail, complete=True, last=len(created.mail))
        self._begin(Claim(task, TaskKind.RUN, lost=False, run=created.run, mailbag=bag), self._tools)

    # --- turns

    def _begin(self, claim: Claim, tools: Tools) -> None:
        definition = self._registry.get(claim.run.workflow)
        machine = self._cache.take(claim.task.run, claim.task.epoch)
        turn = Turn(tools, claim, definition, machine)
        if claim.run.expires_at is not None:
            self._work_at(claim.run.expires_at)
        self._turns[claim.task.run] = turn
        self._tasks[claim.task.run] = asyncio.get_running_loop().create_task(self._run(turn))

    async def _run(self, turn: Turn) -> None:
        try:
            await turn.run()
        except Exception as error:
            await self._park(turn, error)
        finally:
            self._forget(turn)

    def _forget(self, turn: Turn) -> None:
        run = turn.task.run
        if self._turns.get(run) is turn:
            del self._turns[run], self._tasks[run]
        if turn.resting and turn.machine is not None:
            self._cache.put(run, turn.task.epoch, turn.machine)
        if turn.finish is not None:
            self._ended(run, turn.finish)
        if turn.due_at is not None:
            self._work_at(turn.due_at)
        if self._free() >= self._bite:
            self._room.set()
        if turn.claim.run.losses >= SUSPECT_LOSSES:
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

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._afterwards.add(task)
        task.add_done_callback(self._done_later)

    def _done_later(self, task: asyncio.Task[None]) -> None:
        self._afterwards.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("could not roll back the transaction of a step: %s", task.exception())

    async def _park(self, turn: Turn, error: Exception) -> None:
        """Something is wrong with the engine or the data: the run is set aside, and says why; the others go on."""
        run = turn.claim.run
        _log.exception("run %s/%s is parked after an unexpected error", run.workflow, run.instance_id, exc_info=error)
        note = f"the engine failed on this run ({type(error).__name__}: {error}); resume it to try again"
        line = Log("error", "system", note[:2000], None, self._ports.now_ms())
        try:
            await self._tools.committer.commit(Commit(turn.task, follows=Follows(logs=[line], next=Park(note))))
        except Exception:
            _log.exception("could not park run %s/%s", run.workflow, run.instance_id)

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
        self._reserved += limit  # what is on its way has its place
        try:
            result = await self._store.claim(request)
        finally:
            self._reserved -= limit
        for claim in result.claims:
            self._begin(claim, tools or self._tools)
        for claim in result.overdue:
            await self._end_overdue(claim)
        self._next_due = result.next_due
        return len(result.claims) + len(result.overdue)

    async def _end_overdue(self, claim: Claim) -> None:
        """Its time has run out, whoever held it until now."""
        run = claim.run.run
        self._signalled(run, None)
        finish = overdue(claim.run, self._ports.now_ms())
        committed = await self._tools.committer.commit(Commit(claim.task, follows=Follows(next=finish)))
        if committed.verdict is Verdict.APPLIED:
            self._ended(run, finish)
            self._tell(committed)

    async def _claim_step(self) -> float:
        if self._free() < self._bite:
            await self._wait_for_room()
        room = self._free()
        if room <= 0:
            return 0.0
        claimed = await self.claim_due(min(room, _LARGEST_CLAIM))
        return self._pause_after(claimed, room)

    def _free(self) -> int:
        return self._config.concurrency - len(self._turns) - self._reserved

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
        turn = self._turns.get(run)
        if turn is not None:
            turn.signal(signal)
        elif signal is None:
            self._cache.drop(run)

    async def _heartbeat_step(self) -> float:
        if self._accepting and not self._enrolled:
            await self._store.enroll(self.card, self.lease_ms)
            self._enrolled = True
        turns = dict(self._turns)
        held = await self._store.heartbeat(self.id, self.lease_ms)
        self._take_held(turns, held)
        await self._give_back_strangers(held)
        return self.lease_ms / 3000

    async def _give_back_strangers(self, held: Sequence[Held]) -> None:
        """Give back what is held in this worker's name and unknown to it at two heartbeats.

        A start or a claim whose answer got lost: this very heartbeat would keep it for ever.
        """
        strangers = {(h.run, h.epoch): h for h in held if h.run not in self._turns}
        lost = [h for key, h in strangers.items() if key in self._strangers]
        self._strangers = strangers.keys()
        if lost:
            await self._store.release([TaskRef(h.run, h.unit, self.id, h.epoch) for h in lost])

    def _take_held(self, turns: dict[int, Turn], held: Sequence[Held]) -> None:
        """Tell turns what others want of them, and those that are lost that they are."""
        by_run = {h.run: h for h in held}
        for run, turn in turns.items():
            found = by_run.get(run)
            if found is not None and found.epoch == turn.task.epoch:
                if found.signal:
                    turn.signal(found.signal)
            elif self._turns.get(run) is turn:
                turn.signal(None)

    async def _watch_step(self) -> float:
        """Another process wrote: there may be work, a signal for a run held here, or an end someone waits for."""
        version = await self._store.changed(self._seen_version)
        if version != self._seen_version:
            self._seen_version = version
            self._claims.wake()
            if self._turns:
                for held in await self._store.signals(self.id):
                    self._signalled(held.run, held.signal)
        return 0

    async def _reap_step(self) -> float:
        if await self.reap():
            self._claims.wake()
        return min(self._config.poll_ms, self.lease_ms) / 1000

    async def reap(self) -> int:
        freed = await self._store.reap(self._config.max_losses)
        for lost in freed:
            state = "parked" if lost.parked else "free again"
            _log.warning("the worker of run %d died or stalled (%d in a row); it is %s", lost.run, lost.losses, state)
        return len(freed)

    async def _note_step(self) -> float:
        for turn in list(self._turns.values()):
            if turn.waiting:
                turn.note()
        return _NOTE_SECONDS

    # --- one pass

    async def run_pass(self, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Claim what is due now, once, and run it until it rests; how many runs."""
        self._leave_hub = self._hub.join(self._work_at, self._signalled)
        try:
            await self.reap()
            limit = self._config.concurrency if max_instances is None else max_instances
            claimed = 0
            if limit > 0:
                claimed = await self.claim_due(limit, replace(self._tools, budget=Budget(max_steps)))
            self._heartbeats.start()
            while self._tasks:
                await asyncio.wait(list(self._tasks.values()))
            return claimed
        finally:
            await self.stop(drain_ms=0)

    def blocked(self) -> bool:
        """Whether every held run waits for its steps (or none is held).

        Nothing happens unless a step ends or time passes.
        """
        return all(turn.waiting for turn in self._turns.values())

    @property
    def busy(self) -> int:
        return len(self._turns)
