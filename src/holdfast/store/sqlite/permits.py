"""Permits: requests, returns and grants (docs/architecture.md, "Flow control").

Triggers of the schema delete permits when the ownership of their task ends, and keep the counters: a deleted permit
that was granted or held is subtracted from the use of its limits, which are marked as freed. This module grants what
freed limits have room for. The cost of a grant does not depend on the number of waiting permits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.store.protocol import (
    GrantedPermit,
    LimitedStart,
    LimitKey,
    PermitExchange,
    PermitPosition,
    PermitPositionsQuery,
    PermitReply,
    PermitRequest,
    PermitResult,
    PermitReturn,
    Signal,
    ordered_limits,
)
from holdfast.store.sqlite.limits import StoredLimit, stored_limits
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


class _Use(NamedTuple):
    """The row of a limit's key."""

    used: int
    tat: int
    passed: float
    virtual: float


_NO_USE = _Use(0, 0, 0.0, 0.0)


class _Room(NamedTuple):
    """The use of a limit's key."""

    free: bool
    ready_at: int | None
    """When the rate has room; None: the rate has room."""
    tat: int
    """The theoretical arrival time after one more permit."""
    used: int
    passed: float
    virtual: float


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
    """Grant what the limits that this transaction freed have room for."""
    _Flow(tx).settle()


def next_ready(tx: Tx, _: None = None) -> int | None:
    ready: int | None = tx.connection.execute(_SQL["next_ready"]).get
    return ready


def exchange(tx: Tx, request: PermitExchange) -> PermitReply:
    flow = _Flow(tx)
    for one in request.returns:
        _return(tx, one)
    for parked in request.parked:
        tx.connection.execute(_SQL["park"], parked.task)
    flow.settle()  # before new requests: a limit that was freed has room for waiting permits first
    results = [flow.request(one) for one in request.requests]
    granted = tx.connection.execute(_SQL["hold_granted"], (request.owner,)).fetchall()
    held = [GrantedPermit(run, unit, decode_text(step), *rest) for run, unit, step, *rest in granted]
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


def withdraw_queue(tx: Tx, queue: str) -> None:
    """Let the tasks of a queue that no worker owns wait for no permit. They are due, and request one when claimed."""
    tx.connection.execute(_SQL["make_queue_due"], (queue, tx.now))
    tx.connection.execute(_SQL["withdraw_queue"], (queue,))


def _is_run(unit: int, step: object) -> bool:
    """True for the permit of a run as a whole, which has no step."""
    return unit == 0 and not step


def _return(tx: Tx, one: PermitReturn) -> None:
    run, unit, owner, epoch = one.task
    tx.connection.execute(_SQL["return"], (run, unit, encode_text(one.step), one.attempt, owner, epoch))


class _Flow:
    """Requests and grants in one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._limits: dict[str, StoredLimit] | None = None
        self._uses: dict[LimitKey, _Use] = {}
        """Rows that this transaction has read, as they are now. Triggers change rows when permits are deleted."""

    # --- requests

    def request(self, one: PermitRequest) -> PermitResult:
        connection, (run, unit, owner, epoch), step = self._tx.connection, one.task, encode_text(one.step)
        marks = connection.execute(_SQL["fence"], one.task).fetchone()
        if marks is None:
            return PermitResult.LOST
        has_permits, has_tokens = marks
        found = has_permits and connection.execute(_SQL["find"], (run, unit, step, one.attempt)).fetchone()
        parked = epoch if one.park else None
        if not found:
            if not has_permits:
                connection.execute(_SQL["mark_task"], (run, unit))
            held = self._insert(one, parked, 0 if has_tokens and _is_run(unit, step) else 1)
        else:
            permit, state = found
            held = state != _WAITING
            new = (permit, _HELD if held else _WAITING, owner, epoch, one.attempt, None if held else parked)
            connection.execute(_SQL["adopt"], new)
        if held:
            return PermitResult.HELD
        if one.park:
            self._release(one)
        return PermitResult.WAITING

    def _insert(self, one: PermitRequest, parked: int | None, needs_tokens: int) -> bool:
        """Insert the permit, held if all limits have room and no permit of its group waits.

        ``needs_tokens``: 0 for a run that continues, which has taken the tokens of its rates when it began.
        """
        keys = ordered_limits(one.limits)
        text = json.dumps(keys)
        group = self._tx.connection.execute(_SQL["group"], (text, needs_tokens)).fetchone()
        fair = self._fair(keys)
        if group is None:
            group = (self._new_group(text, needs_tokens, fair), 0)
        waits = group[1] > 0
        blocking = None if waits else self._blocking(keys, needs_tokens)
        held = not waits and blocking is None
        tag = max((self._room(key).virtual for key in keys), default=0.0)
        run, unit, owner, epoch = one.task
        columns = (group[0], _HELD if held else _WAITING, one.priority, tag, one.until_end, owner, epoch)
        row = (run, unit, encode_text(one.step), one.attempt, *columns, None if held else parked)
        permit = self._tx.connection.execute(_SQL["insert"], row).get
        if held:
            self._take(keys, needs_tokens)
            self._mark_tokens(run, unit, encode_text(one.step), keys, needs_tokens)
        elif blocking is None:
            self._tx.connection.execute(_SQL["enqueue"], (group[0], one.priority, permit, tag))
        else:
            passed = tag if fair is None else max(self._room(fair).passed, tag)
            head = (passed, one.priority, permit)
            self._tx.connection.execute(_SQL["activate"], (group[0], *blocking, *head, *(fair or (None, None))))
        return held

    def _new_group(self, text: str, needs_tokens: int, fair: LimitKey | None) -> int:
        """Add a group. Each new group deletes up to four idle ones, so that keys that are used once leave no rows."""
        connection = self._tx.connection
        added: int = connection.execute(_SQL["insert_group"], (text, needs_tokens, *(fair or (None, None)))).get
        probe = self._tx.now * _PROBE_FACTOR % added
        for (limits,) in connection.execute(_SQL["forget_groups"], (added, probe, self._tx.now * 1000)).fetchall():
            connection.executemany(_SQL["forget_use"], [tuple(key) for key in json.loads(limits)])
        return added

    def take_for_start(self, run: int, keys: Sequence[LimitKey], priority: int, *, until_end: bool) -> LimitKey | None:
        connection, text = self._tx.connection, json.dumps(keys)
        self.settle()
        group = connection.execute(_SQL["group"], (text, 1)).fetchone()
        if group is not None and group[1] > 0:
            return keys[0]
        blocking = next((key for key in keys if not self._room(key).free), None)
        if blocking is not None:
            return blocking
        if group is None:
            group = (self._new_group(text, 1, self._fair(keys)),)
        connection.execute(_SQL["mark_task"], (run, 0))
        tag = max((self._room(key).virtual for key in keys), default=0.0)
        row = (run, 0, encode_text(""), 0, group[0], _GRANTED, priority, tag, until_end, None, 0, 0)
        connection.execute(_SQL["insert"], row)
        self._take(keys, 1)
        self._mark_tokens(run, 0, encode_text(""), keys, 1)
        return None

    def _release(self, one: PermitRequest) -> None:
        """Release the task of a waiting permit. A requested pause takes effect.

        A node of a paused graph that was claimed before the pause requests its permit again after the resume.
        """
        signal = self._tx.connection.execute(_SQL["signal_of"], one.task).get
        self._tx.connection.execute(_SQL["release"], one.task)
        if signal & Signal.PAUSE:
            set_paused(self._tx, one.task.run)
        run, unit, *_ = one.task
        self._tx.connection.execute(_SQL["withdraw_if_paused"], (run, unit))
        if self._tx.connection.execute(_SQL["make_due_if_queue_paused"], (run, unit, self._tx.now)).fetchall():
            self._tx.connection.execute(_SQL["withdraw"], (run, unit))
        self._uses.clear()

    # --- grants

    def settle(self) -> None:
        """Grant waiting permits for which freed limits, and rates that are ready, have room."""
        freed = self._tx.connection.execute(_SQL["freed"], (self._tx.now,)).fetchall()
        pending = ordered_limits([LimitKey(*row) for row in freed])
        for n, key in enumerate(pending):
            later = set(pending[n + 1 :])
            ready_at = self._grant_at(key, later)
            self._tx.connection.execute(_SQL["settled"], (*key, ready_at))

    def _grant_at(self, key: LimitKey, later: set[LimitKey]) -> int | None:
        """Grant permits of the groups that wait at this limit; returns when its rate has room, if they wait for that.

        ``later``: limits that are settled after this one. A group that could be granted competes there instead.
        """
        for group in self._groups_at(key):
            room = self._room(key, group.needs_tokens)
            if not room.free:
                return room.ready_at
            keys = group.keys
            elsewhere = self._blocking(keys, group.needs_tokens) or next(
                (other for other in keys if other in later), None
            )
            if elsewhere is None:
                self._grant(group, keys)
            else:
                virtual = self._room(elsewhere).virtual
                self._tx.connection.execute(_SQL["move_group"], (group.id, *elsewhere, virtual))
        return None

    def _groups_at(self, key: LimitKey) -> Iterator[_Group]:
        while (row := self._tx.connection.execute(_SQL["next_group"], key).fetchone()) is not None:
            yield _Group(*row)

    def _grant(self, group: _Group, keys: Sequence[LimitKey]) -> None:
        connection = self._tx.connection
        self._take(keys, group.needs_tokens, group.passed)
        [(run, unit, step, owner)] = connection.execute(_SQL["grant"], (group.head,)).fetchall()
        self._mark_tokens(run, unit, step, keys, group.needs_tokens)
        if owner is None:
            connection.execute(_SQL["make_due"], (run, unit, self._tx.now))
        connection.execute(_SQL["after_grant"], (group.id,))
        if group.waiting > 1:
            connection.execute(_SQL["next_head"], (group.id,))

    def _take(self, keys: Sequence[LimitKey], needs_tokens: int, granted_pass: float = 0.0) -> None:
        """Count a permit under its limits. The pass of its fair key increases by the inverse of the key's weight."""
        fair = self._fair(keys)
        for key in keys:
            room = self._room(key, needs_tokens)
            passed = room.passed
            virtual = max(room.virtual, granted_pass)
            if key == fair:
                start = max(passed, granted_pass, virtual)
                passed = start + 1.0 / self._weight(key)
                virtual = max(virtual, start)
                self._tx.connection.execute(_SQL["set_pass"], (*key, passed))
            self._tx.connection.execute(_SQL["take"], (*key, room.tat, passed, virtual))
            self._uses[key] = _Use(room.used + 1, room.tat, passed, virtual)

    def _mark_tokens(self, run: int, unit: int, step: object, keys: Sequence[LimitKey], needs_tokens: int) -> None:
        """Record that a run has taken the tokens of its rates: its later turns continue, and take none."""
        if needs_tokens and _is_run(unit, step) and any(self._has_rate(key) for key in keys):
            self._tx.connection.execute(_SQL["mark_tokens"], (run,))

    # --- limits

    def _has_rate(self, key: LimitKey) -> bool:
        limit = self._limit(key.name)
        return limit is not None and limit.values.rate is not None

    def _blocking(self, keys: Sequence[LimitKey], needs_tokens: int) -> LimitKey | None:
        """The first limit without room. If that is because of its rate, note when the rate has room."""
        for key in keys:
            room = self._room(key, needs_tokens)
            if not room.free:
                if room.ready_at is not None:
                    self._tx.connection.execute(_SQL["set_ready"], (*key, room.ready_at))
                return key
        return None

    def _room(self, key: LimitKey, needs_tokens: int = 1) -> _Room:
        limit = self._limit(key.name)
        use = self._uses.get(key)
        if use is None:
            row = self._tx.connection.execute(_SQL["use"], key).fetchone()
            use = self._uses[key] = _NO_USE if row is None else _Use(*row)
        used, tat, passed, virtual = use
        if limit is None:  # no app declares the limit any more
            return _Room(True, None, tat, used, passed, virtual)
        full = limit.values.concurrency is not None and used >= limit.values.concurrency
        rate = limit.values.rate if needs_tokens else None
        if rate is None:
            return _Room(not full, None, tat, used, passed, virtual)
        now = self._tx.now * 1000
        interval = rate.per_ms * 1000 // rate.permits
        latest = now + rate.burst * interval
        arrival = max(min(tat, latest), now) + interval
        early = arrival - latest
        ready_at = None if early <= 0 else self._tx.now + -(-early // 1000)
        if tat > latest:  # of a slower rate, before a change, or of a clock that was set back: the rate is used up
            self._tx.connection.execute(_SQL["set_tat"], (*key, latest))
            self._uses[key] = use._replace(tat=latest)
        return _Room(not full and early <= 0, None if full else ready_at, arrival, used, passed, virtual)

    def _limit(self, name: str) -> StoredLimit | None:
        if self._limits is None:
            self._limits = stored_limits(self._tx)
        return self._limits.get(name)

    def _fair(self, keys: Sequence[LimitKey]) -> LimitKey | None:
        for key in keys:
            limit = self._limit(key.name)
            if limit is not None and limit.values.fair:
                return key
        return None

    def _weight(self, key: LimitKey) -> float:
        limit = self._limit(key.name)
        return 1.0 if limit is None else float(limit.values.weights.get(key.key, 1.0))
