"""Permits: requests, returns and grants (docs/architecture.md, "Flow control").

Triggers of the schema delete permits when the ownership of their task ends, and keep the counters: a deleted permit
that was granted or held is subtracted from the use of its limits, which are marked as freed. This module grants the
permits that freed limits have room for. The cost of a grant does not depend on the number of waiting permits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from holdfast.store.protocol import (
    GrantedPermit,
    LimitedStart,
    LimitKey,
    LimitKeysQuery,
    LimitKeyUse,
    LimitKeyUses,
    PermitExchange,
    PermitPosition,
    PermitPositionsQuery,
    PermitReply,
    PermitRequest,
    PermitResult,
    PermitReturn,
    Signal,
    TaskRef,
    ordered_limits,
)
from holdfast.store.sqlite.limit_uses import LimitUses
from holdfast.store.sqlite.pausing import set_paused
from holdfast.store.sqlite.rows import decode_text, encode_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("permits")
_WAITING, _GRANTED, _HELD = 0, 1, 2
_PROBE_FACTOR = 7919
"""Spreads the ids of the groups that are checked for being idle."""
_MAX_COUNTED = 1000
"""Maximum number of permits that are counted for a position."""


class _Group(NamedTuple):
    id: int
    limits: str
    needs_tokens: int
    passed: float
    head: int
    waiting: int

    @property
    def keys(self) -> list[LimitKey]:
        return [LimitKey(*pair) for pair in json.loads(self.limits)]


def has_work(tx: Tx, owner: str) -> bool:
    return bool(tx.connection.execute(_SQL["has_work"], (owner, tx.now)).get)


def settle(tx: Tx) -> None:
    """Grant the permits for which the limits that this transaction freed have room."""
    _Flow(tx).settle()


def next_ready(tx: Tx, _: None = None) -> int | None:
    ready: int | None = tx.connection.execute(_SQL["next_ready"]).get
    return ready


def exchange(tx: Tx, request: PermitExchange) -> PermitReply:
    flow = _Flow(tx, request.owner)
    for one in request.returns:
        _return(tx, one)
    flow.settle()  # before new requests: a limit that was freed has room for waiting permits first
    results = [flow.request(one) for one in request.requests]
    flow.flush()
    flow.release()  # after all requests: what a release returns is for permits that wait already
    earlier = tx.connection.execute(_SQL["hold_granted"], (request.owner,)).fetchall()
    held = [GrantedPermit(run, unit, decode_text(step), *rest) for run, unit, step, *rest in (*flow.held, *earlier)]
    due = bool(tx.connection.execute(_SQL["has_due"]).get)
    return PermitReply(results, held, due, next_ready(tx))


def take_for_start(tx: Tx, run: int, policy: LimitedStart, priority: int) -> LimitKey | None:
    """Grant the permit of a new run that no worker has claimed yet, or return the limit without room.

    The permit is parked: the worker that claims the run finds it.
    """
    return _Flow(tx).take_for_start(run, ordered_limits(policy.limits), priority, until_end=policy.until_end)


def positions(tx: Tx, query: PermitPositionsQuery) -> list[PermitPosition]:
    return [
        PermitPosition(
            decode_text(step), LimitKey(name, key), used or 0, concurrency, None if n == _MAX_COUNTED else n, waiting,
            ready_at,
        )
        for step, name, key, waiting, used, concurrency, ready_at, n in tx.connection.execute(
            _SQL["positions"], (query.run, _MAX_COUNTED)
        )
    ]  # fmt: skip


def keys(tx: Tx, query: LimitKeysQuery) -> LimitKeyUses:
    rows = tx.connection.execute(_SQL["keys"], (query.name, query.limit)).fetchall()
    uses = [LimitKeyUse(key, used, waiting, oldest) for key, used, waiting, _, oldest in rows]
    return LimitKeyUses(rows[0][3] if rows else 0, uses)


def withdraw_queue(tx: Tx, queue: str) -> None:
    """Withdraw the permits of a queue's tasks that no worker owns. The tasks are due, and request permits again."""
    tx.connection.execute(_SQL["make_queue_due"], (queue, tx.now))
    tx.connection.execute(_SQL["withdraw_queue"], (queue,))


def _is_run(unit: int, step: object) -> bool:
    """True for the permit of a run as a whole, which has no step."""
    return unit == 0 and not step


@lru_cache(maxsize=4096)
def _ordered(limits: tuple[LimitKey, ...]) -> tuple[list[LimitKey], str]:
    """Limits in the order in which they are settled, and as the text of their group."""
    keys = ordered_limits(limits)
    return keys, json.dumps(keys)


def _return(tx: Tx, one: PermitReturn) -> None:
    run, unit, owner, epoch = one.task
    tx.connection.execute(_SQL["return"], (run, unit, encode_text(one.step), one.attempt, owner, epoch))


class _Pending:
    """Waiting requests of a group that are added to its row at the end of the exchange."""

    __slots__ = ("count", "head", "priority", "tag")

    def __init__(self, priority: int, head: int, tag: float) -> None:
        self.count, self.priority, self.head, self.tag = 0, priority, head, tag


class _Flow:
    """Requests and grants in one transaction."""

    def __init__(self, tx: Tx, owner: str | None = None) -> None:
        """``owner``: the worker whose grants the reply to this exchange reports."""
        self._tx = tx
        self._owner = owner
        self._uses = LimitUses(tx)
        self.held: list[tuple[int, int, object, int, int]] = []
        """Granted permits that the owner holds at once: run, unit, step, attempt and epoch."""
        self._groups: dict[tuple[str, int], tuple[int, bool]] = {}
        """Groups by limits and tokens: their ids, and whether permits wait. Only requests read it, after the grants."""
        self._enqueued: dict[int, _Pending] = {}
        self._parked: dict[TaskRef, int] = {}
        """Tasks whose permits have to wait, and their signals."""

    def flush(self) -> None:
        """Write the collected changes of limits and groups."""
        self._uses.flush()
        for group, one in self._enqueued.items():
            self._tx.connection.execute(_SQL["enqueue"], (group, one.count, one.priority, one.head, one.tag))
        self._enqueued.clear()

    # --- requests

    def request(self, one: PermitRequest) -> PermitResult:
        connection, (run, unit, owner, epoch), step = self._tx.connection, one.task, encode_text(one.step)
        found = connection.execute(_SQL["find"], (*one.task, step, one.attempt)).fetchone()
        if found is None:
            return PermitResult.LOST
        has_permits, has_tokens, signal, permit, state = found
        parked = epoch if one.park else None
        if permit is None:
            if not has_permits:
                connection.execute(_SQL["mark_task"], (run, unit))
            held = self._insert(one, parked, 0 if has_tokens and _is_run(unit, step) else 1)
        else:
            held = state != _WAITING
            new = (permit, _HELD if held else _WAITING, owner, epoch, one.attempt, None if held else parked)
            connection.execute(_SQL["adopt"], new)
            if held and not has_tokens:
                self._mark_tokens(run, unit, step, one.limits, 1)
        if held:
            return PermitResult.HELD
        if one.park:
            self._parked[one.task] = signal
        return PermitResult.WAITING

    def _insert(self, one: PermitRequest, parked: int | None, needs_tokens: int) -> bool:
        """Insert the permit, held if all limits have room and no permit of its group waits.

        ``needs_tokens``: 0 for a run that continues, which has taken the tokens of its rates when it began.
        """
        uses = self._uses
        keys, text = _ordered(tuple(one.limits))
        fair = uses.fair(keys)
        group, waits = self._group(text, needs_tokens, fair)
        blocking = None if waits else uses.blocking(keys, needs_tokens)
        held = not waits and blocking is None
        tag = max(map(uses.virtual, keys), default=0.0)
        run, unit, owner, epoch = one.task
        columns = (group, _HELD if held else _WAITING, one.priority, tag, one.until_end, owner, epoch)
        row = (run, unit, encode_text(one.step), one.attempt, *columns, None if held else parked, self._tx.now)
        permit: int = self._tx.connection.execute(_SQL["insert"], row).get
        if held:
            uses.take(keys, needs_tokens)
            self._mark_tokens(run, unit, encode_text(one.step), keys, needs_tokens)
        elif blocking is None:
            self._enqueue(group, one.priority, permit, tag)
        else:
            passed = tag if fair is None else max(uses.room(fair).passed, tag)
            head = (passed, one.priority, permit)
            self._tx.connection.execute(_SQL["activate"], (group, *blocking, *head, *(fair or (None, None))))
            self._groups[text, needs_tokens] = group, True
        return held

    def _enqueue(self, group: int, priority: int, permit: int, tag: float) -> None:
        pending = self._enqueued.get(group)
        if pending is None:
            pending = self._enqueued[group] = _Pending(priority, permit, tag)
        elif priority < pending.priority:
            pending.priority, pending.head, pending.tag = priority, permit, tag
        pending.count += 1

    def _group(self, text: str, needs_tokens: int, fair: LimitKey | None) -> tuple[int, bool]:
        found = self._groups.get((text, needs_tokens))
        if found is None:
            row = self._tx.connection.execute(_SQL["group"], (text, needs_tokens)).fetchone()
            found = (self._new_group(text, needs_tokens, fair), False) if row is None else (row[0], row[1] > 0)
            self._groups[text, needs_tokens] = found
        return found

    def _new_group(self, text: str, needs_tokens: int, fair: LimitKey | None) -> int:
        """Add a group. Each new group deletes up to four idle ones, so that keys that are used once leave no rows."""
        connection = self._tx.connection
        added: int = connection.execute(_SQL["insert_group"], (text, needs_tokens, *(fair or (None, None)))).get
        probe = self._tx.now * _PROBE_FACTOR % added
        for (limits,) in connection.execute(_SQL["forget_groups"], (added, probe, self._tx.now * 1000)).fetchall():
            connection.executemany(_SQL["forget_use"], [tuple(key) for key in json.loads(limits)])
            self._groups.clear()
        return added

    def take_for_start(self, run: int, keys: Sequence[LimitKey], priority: int, *, until_end: bool) -> LimitKey | None:
        connection, text = self._tx.connection, json.dumps(keys)
        self.settle()
        row = connection.execute(_SQL["group"], (text, 1)).fetchone()
        if row is not None and row[1] > 0:
            return keys[0]
        blocking = next((key for key in keys if not self._uses.room(key).free), None)
        if blocking is not None:
            return blocking
        group = self._new_group(text, 1, self._uses.fair(keys)) if row is None else row[0]
        connection.execute(_SQL["mark_task"], (run, 0))
        tag = max(map(self._uses.virtual, keys), default=0.0)
        permit = (run, 0, encode_text(""), 0, group, _GRANTED, priority, tag, until_end, None, 0, 0, self._tx.now)
        connection.execute(_SQL["insert"], permit)
        self._uses.take(keys, 1)
        self._mark_tokens(run, 0, encode_text(""), keys, 1)
        self.flush()
        return None

    def release(self) -> None:
        """Release the tasks whose permits have to wait. A requested pause takes effect.

        A node of a paused graph that was claimed before the pause requests its permit again after the resume.
        """
        connection = self._tx.connection
        for task, signal in self._parked.items():
            pause = signal & Signal.PAUSE
            [(paused, queue_paused)] = connection.execute(_SQL["release"], task).fetchall()
            if pause:
                set_paused(self._tx, task.run)
            if paused or queue_paused:
                if not paused and not pause:
                    connection.execute(_SQL["make_due"], (task.run, task.unit, self._tx.now))
                connection.execute(_SQL["withdraw"], (task.run, task.unit))

    # --- grants

    def settle(self) -> None:
        """Grant waiting permits for which freed limits, and rates that are ready, have room."""
        freed = self._tx.connection.execute(_SQL["freed"], (self._tx.now,)).fetchall()
        if not freed:
            return
        pending = ordered_limits([LimitKey(name, key) for name, key, waits in freed if waits])
        if len(pending) < len(freed):
            self._tx.connection.execute(_SQL["settle_idle"])
            self._tx.connection.execute(_SQL["settle_idle_rates"], (self._tx.now,))
        for n, key in enumerate(pending):
            later = set(pending[n + 1 :])
            ready_at = self._grant_at(key, later)
            self._tx.connection.execute(_SQL["settled"], (*key, ready_at))
        self.flush()

    def _grant_at(self, key: LimitKey, later: set[LimitKey]) -> int | None:
        """Grant permits of the groups that wait at this limit; returns when its rate has room, if they wait for that.

        ``later``: limits that are settled after this one. A group that could be granted competes there instead.
        """
        for group, is_alone in self._groups_at(key):
            room = self._uses.room(key, group.needs_tokens)
            if not room.free:
                return room.ready_at
            keys = group.keys
            elsewhere = self._uses.blocking(keys, group.needs_tokens) or next(
                (other for other in keys if other in later), None
            )
            if elsewhere is None:
                self._grant(group, keys, group.waiting if is_alone else 1)
            else:
                virtual = self._uses.virtual(elsewhere)
                self._tx.connection.execute(_SQL["move_group"], (group.id, *elsewhere, virtual))
        return None

    def _groups_at(self, key: LimitKey) -> Iterator[tuple[_Group, bool]]:
        """The next group at a limit, again and again, and whether it is the only one there."""
        while rows := self._tx.connection.execute(_SQL["next_group"], key).fetchall():
            yield _Group(*rows[0]), len(rows) == 1

    def _grant(self, group: _Group, keys: Sequence[LimitKey], wanted: int) -> None:
        """Grant the first permits of a group, as many as there is room for, at least one and at most ``wanted``."""
        connection = self._tx.connection
        count = self._uses.room_for(keys, wanted, group.needs_tokens)
        if count == 1:
            granted = connection.execute(_SQL["grant"], (group.head, self._owner)).fetchall()
        else:
            granted = connection.execute(_SQL["grant_many"], (group.id, count, self._owner)).fetchall()
        connection.execute(_SQL["after_grant"], (group.id, count))
        self._uses.take(keys, group.needs_tokens, group.passed, count)
        for run, unit, step, owner, state, attempt, epoch in granted:
            if state == _HELD:
                self.held.append((run, unit, step, attempt, epoch))
            elif owner is None:
                connection.execute(_SQL["make_due"], (run, unit, self._tx.now))
        if group.waiting > count:
            connection.execute(_SQL["next_head"], (group.id,))

    def _mark_tokens(self, run: int, unit: int, step: object, keys: Sequence[LimitKey], needs_tokens: int) -> None:
        """Record that a run has taken the tokens of its rates: its later turns continue, and take none.

        A grant does not record it, because the permit of a run that is paused before it begins is withdrawn: the
        request that adopts the granted permit does.
        """
        if needs_tokens and _is_run(unit, step) and any(self._uses.has_rate(key) for key in keys):
            self._tx.connection.execute(_SQL["mark_tokens"], (run,))
