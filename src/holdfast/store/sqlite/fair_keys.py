"""Fair keys: runs of a workflow with a fair limit begin key by key (docs/architecture.md, "Flow control").

A run that has not begun is in a bucket of its own, which ordinary claims leave out. A claim takes the runs of the keys
with the lowest passes. A run that was paused, or that an event woke, is in an ordinary bucket from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from holdfast.store.protocol import ClaimRequest, LimitKey, NewRun
from holdfast.store.sqlite.limits import stored_limits
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("fair_keys")


def join(tx: Tx, run: int, new: NewRun) -> None:
    """Let a new run wait until its key is served."""
    if new.fair_key is not None and not new.delay_ms:
        tx.connection.execute(_SQL["set_key"], (run, new.fair_key.key))
        place = (new.queue, new.workflow, new.fair_key.key)
        tx.connection.execute(_SQL["join"], (*place, _stride(tx, new.fair_key)))


def move(tx: Tx, source: str, target: str) -> None:
    """Add the keys of a queue, whose tasks are about to be moved, to another queue."""
    for workflow, key, stride in tx.connection.execute(_SQL["moved_keys"], (source,)).fetchall():
        tx.connection.execute(_SQL["join"], (target, workflow, key, stride))


def due(tx: Tx, request: ClaimRequest, room: int) -> Iterator[list[Row]]:
    """Due tasks, at most ``room``. The caller claims the tasks of each list before it asks for the next one."""
    if room <= 0 or not tx.connection.execute(_SQL["any"]).get:
        return
    queues_and_workflows = (json.dumps(list(request.queues)), json.dumps(sorted(request.workflows)))
    places = tx.connection.execute(_SQL["places"], queues_and_workflows).fetchall()
    for n, place in enumerate(places):
        quota = -(-room // (len(places) - n))
        for tasks in _due_at(tx, place, quota):
            room -= len(tasks)
            yield tasks


def _due_at(tx: Tx, place: Row, room: int) -> Iterator[list[Row]]:
    """Equal parts of ``room`` for the keys with the lowest passes, until there is no room or no task."""
    while room > 0 and (keys := tx.connection.execute(_SQL["keys"], (*place, room)).fetchall()):
        for n, (key,) in enumerate(keys):
            wanted = -(-room // (len(keys) - n))
            tasks = tx.connection.execute(_SQL["due"], (*place, key, wanted)).fetchall()
            if len(tasks) < wanted:
                tx.connection.execute(_SQL["leave"], (*place, key))
            else:
                tx.connection.execute(_SQL["served"], (*place, key, len(tasks)))
            room -= len(tasks)
            if tasks:
                yield tasks


def _stride(tx: Tx, fair_key: LimitKey) -> float:
    limit = stored_limits(tx).get(fair_key.name)
    return 1.0 if limit is None else 1.0 / float(limit.values.weights.get(fair_key.key, 1.0))
