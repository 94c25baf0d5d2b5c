"""The use of limits in one transaction: the room that limits have, and the permits that are taken from it.

The rows of limits without keys are written at the end: an exchange takes many permits of the same limit. Until then
the cached row is the current one. Triggers change the rows when permits are deleted, so this happens before the first
read or after the last ``flush``. Rows of keys are written at once: ``forget_groups`` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.protocol import LimitKey, StoredLimit
from holdfast.store.sqlite.limits import stored_limits
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("permits")


class _Use(NamedTuple):
    """The row of a limit's key."""

    used: int
    tat: int
    passed: float
    virtual: float


_NO_USE = _Use(0, 0, 0.0, 0.0)


class Room(NamedTuple):
    """The use of a limit's key."""

    free: bool
    ready_at: int | None
    """The time at which the rate has room; None: it has room now."""
    tat: int
    """The theoretical arrival time after one more permit."""
    used: int
    passed: float
    virtual: float


class LimitUses:
    """The limits, and the use of their keys."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._limits: dict[str, StoredLimit] | None = None
        self._uses: dict[LimitKey, _Use] = {}
        """Rows that this transaction has read, as they are now."""
        self._taken: dict[LimitKey, int] = {}
        """Number of permits that rows in the database do not count yet."""

    # --- room

    def room(self, key: LimitKey, needs_tokens: int = 1) -> Room:
        limit = self.limit(key.name)
        used, tat, passed, virtual = use = self._use(key)
        if limit is None:  # no app declares the limit any more
            return Room(True, None, tat, used, passed, virtual)
        concurrency, rate = limit.values.concurrency, limit.values.rate
        full = concurrency is not None and used >= concurrency
        if rate is None or not needs_tokens:
            return Room(not full, None, tat, used, passed, virtual)
        now = self._tx.now * 1000
        interval = rate.interval
        latest = now + rate.burst * interval
        arrival = max(min(tat, latest), now) + interval
        early = arrival - latest
        ready_at = None if early <= 0 else self._tx.now + -(-early // 1000)
        if tat > latest:  # of a slower rate, before a change, or of a clock that was set back: the rate is used up
            self._tx.connection.execute(_SQL["set_tat"], (*key, latest))
            self._uses[key] = use._replace(tat=latest)
        return Room(not full and early <= 0, None if full else ready_at, arrival, used, passed, virtual)

    def room_for(self, keys: Sequence[LimitKey], wanted: int, needs_tokens: int) -> int:
        """The number of permits of one group to grant at once, from 1 to ``wanted``. The limits have room for one.

        1 if each grant changes the order of the next ones (fair limits), or takes a token.
        """
        for key in keys:
            limit = self.limit(key.name)
            if limit is None:
                continue
            values = limit.values
            if values.fair or (needs_tokens and values.rate is not None):
                return 1
            if values.concurrency is not None:
                wanted = min(wanted, values.concurrency - self._use(key).used)
        return max(1, wanted)

    def blocking(self, keys: Sequence[LimitKey], needs_tokens: int) -> LimitKey | None:
        """The first limit without room. If its rate has no room, store the time at which the rate has room again."""
        for key in keys:
            room = self.room(key, needs_tokens)
            if not room.free:
                if room.ready_at is not None:
                    self._tx.connection.execute(_SQL["set_ready"], (*key, room.ready_at))
                return key
        return None

    def virtual(self, key: LimitKey) -> float:
        """The virtual time of a limit's key."""
        return self._use(key).virtual

    def _use(self, key: LimitKey) -> _Use:
        use = self._uses.get(key)
        if use is None:
            row = self._tx.connection.execute(_SQL["use"], key).fetchone()
            use = self._uses[key] = _NO_USE if row is None else _Use(*row)
        return use

    # --- taking

    def take(self, keys: Sequence[LimitKey], needs_tokens: int, granted_pass: float = 0.0, count: int = 1) -> None:
        """Count permits under their limits. The pass of their fair key increases by the inverse of the key's weight."""
        fair = self.fair(keys)
        for key in keys:
            room = self.room(key, needs_tokens)
            passed = room.passed
            virtual = max(room.virtual, granted_pass)
            if key == fair:
                start = max(passed, granted_pass, virtual)
                passed = start + 1.0 / self._weight(key)
                virtual = max(virtual, start)
                self._tx.connection.execute(_SQL["set_pass"], (*key, passed))
            self._uses[key] = _Use(room.used + count, room.tat, passed, virtual)
            self._taken[key] = self._taken.get(key, 0) + count
            if key.key:
                self._write(key)

    def flush(self) -> None:
        """Write the rows that have changed."""
        for key in list(self._taken):
            self._write(key)

    def _write(self, key: LimitKey) -> None:
        _, tat, passed, virtual = self._uses[key]
        self._tx.connection.execute(_SQL["take"], (*key, self._taken.pop(key), tat, passed, virtual))

    # --- limits

    def limit(self, name: str) -> StoredLimit | None:
        if self._limits is None:
            self._limits = stored_limits(self._tx)
        return self._limits.get(name)

    def has_rate(self, key: LimitKey) -> bool:
        limit = self.limit(key.name)
        return limit is not None and limit.values.rate is not None

    def fair(self, keys: Sequence[LimitKey]) -> LimitKey | None:
        """The first fair limit."""
        for key in keys:
            limit = self.limit(key.name)
            if limit is not None and limit.values.fair:
                return key
        return None

    def _weight(self, key: LimitKey) -> float:
        limit = self.limit(key.name)
        return 1.0 if limit is None else float(limit.values.weights.get(key.key, 1.0))
