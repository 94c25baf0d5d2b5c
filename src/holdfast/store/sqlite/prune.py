"""Deletes finished runs in small transactions, and returns free pages to the file system.

The rows of a large run are deleted in several transactions. The first one deletes the run's own row, so that no reader
sees a part of the history; ``holdfast_leftover`` names the run until its other rows are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol import LARGE_RUN, LEFTOVER_ROWS, PrunePosition, PruneRuns
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("prune")
_PAGES = 100
"""Maximum number of pages that one transaction returns to the file system."""
_INCREMENTAL = 2
"""The value of the pragma auto_vacuum in files from which free pages can be returned."""


class _Run(NamedTuple):
    id: int
    instance: int
    workflow: str
    instance_id: str
    number: int
    current: int
    line: int
    has_open_parent: int
    has_pending_outbox: int


class _Deletion(NamedTuple):
    """A run to delete."""

    run: int
    line: int
    keep: bool
    """Keep the keys of its events."""
    instance: int | None = None
    """The instance, if this is its current run: the search terms are deleted, too."""


class Candidates(NamedTuple):
    runs: list[int]
    next: PrunePosition | None
    stored: int


def find(tx: Tx, request: PruneRuns) -> Candidates:
    """The runs that are old enough."""
    stored: int = tx.connection.execute(_SQL["stored"]).get
    if request.limit <= 0:
        return Candidates([], None, stored)
    if request.workflow is not None:
        return _find(tx, request, request.workflow, stored)
    workflow = request.after.workflow or _next_workflow(tx, "")
    if workflow is None:
        return Candidates([], None, stored)
    found = _find(tx, request, workflow, stored)
    if found.next is not None:
        return found._replace(next=found.next._replace(workflow=workflow))
    workflow = _next_workflow(tx, workflow)
    return found if workflow is None else found._replace(next=PrunePosition(workflow=workflow))


def _next_workflow(tx: Tx, after: str) -> str | None:
    name: str | None = tx.connection.execute(_SQL["next_workflow"], (after,)).get
    return name


def _find(tx: Tx, request: PruneRuns, workflow: str, stored: int) -> Candidates:
    before = tx.now - request.age_ms
    if request.keep:
        kept_since = _kept_since(tx, workflow, request.keep)
        if kept_since is None:
            return Candidates([], None, stored)
        before = min(before, kept_since - 1)
    arguments = (workflow, request.status, request.after.at, request.after.run, before, request.limit)
    found = [PrunePosition(*row) for row in tx.connection.execute(_SQL["candidates"], arguments)]
    return Candidates([one.run for one in found], found[-1] if len(found) == request.limit else None, stored)


def _kept_since(tx: Tx, workflow: str, keep: int) -> int | None:
    """The end of the oldest of the newest ``keep`` finished runs; None if there are fewer."""
    ends = [
        end
        for status in Status
        if status.terminal
        for (end,) in tx.connection.execute(_SQL["newest_ends"], (workflow, status, keep))
    ]
    return sorted(ends, reverse=True)[keep - 1] if len(ends) >= keep else None


def count(tx: Tx, runs: list[int]) -> int:
    """The number of runs that ``delete`` would delete, with the earlier runs of their instances."""
    return len({one.run for run in runs for one in _deletions(tx, run)})


def has_leftovers(tx: Tx, _: None = None) -> bool:
    return tx.connection.execute(_SQL["leftover"]).fetchone() is not None


def delete(tx: Tx, runs: list[int]) -> int:
    """Delete those of the runs that can be deleted. Returns the number of deleted runs."""
    return sum(_delete(tx, one) for run in runs for one in _deletions(tx, run))


def delete_leftovers(tx: Tx, _: None = None) -> None:
    """Delete some of the rows of a large run."""
    found = tx.connection.execute(_SQL["leftover"]).fetchone()
    if found is None:
        return
    run, keep = found
    room = LEFTOVER_ROWS
    for name in ("delete_some_facts", "delete_some_logs", "delete_some_outbox", "delete_some_chunks"):
        tx.connection.execute(_SQL[name], (run, room))
        room -= tx.connection.changes()
    tx.connection.execute(_SQL["delete_some_events"], (run, room, keep))
    if tx.connection.changes() < room:
        tx.connection.execute(_SQL["delete_leftover"], (run,))


def compact(tx: Tx, everything: bool) -> int:
    """Return some free pages to the file system, and return the number of those that are left.

    A tenth of the file stays free for new runs unless ``everything``. Without effect on a file that was created without
    ``auto_vacuum``.
    """
    if tx.connection.pragma("auto_vacuum") != _INCREMENTAL:
        return 0
    free: int = tx.connection.pragma("freelist_count")
    reserve = 0 if everything else tx.connection.pragma("page_count") // 10
    if free <= reserve:
        return 0
    pages = min(_PAGES, free - reserve)
    tx.connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    return free - reserve - pages


def _deletions(tx: Tx, id_: int) -> Iterator[_Deletion]:
    found = tx.connection.execute(_SQL["run"], (id_,)).fetchone()
    if found is None:
        return  # deleted meanwhile, or together with the current run of its instance
    run = _Run(*found)
    if run.has_open_parent or run.has_pending_outbox:
        return
    if not run.current:
        line: int = tx.connection.execute(_SQL["line_of_current"], (run.workflow, run.instance_id)).get
        yield _Deletion(run.id, run.line, line == run.line)
        return
    name = (run.workflow, run.instance_id, run.number)
    earlier = tx.connection.execute(_SQL["earlier_runs"], name).fetchall() if run.number else []
    if any(has_pending_outbox for _, _, has_pending_outbox in earlier):
        return
    yield from [_Deletion(one, line, keep=False) for one, line, _ in earlier]
    yield _Deletion(run.id, run.line, keep=False, instance=run.instance)


def _delete(tx: Tx, one: _Deletion) -> bool:
    execute, run = tx.connection.execute, one.run
    execute(_SQL["delete_run"], (run,))
    execute(_SQL["delete_streams"], (run,))
    if execute(_SQL["is_large"], (run, LARGE_RUN)).get:
        execute(_SQL["add_leftover"], (run, one.keep))
    else:
        execute(_SQL["delete_facts"], (run,))
        execute(_SQL["delete_logs"], (run,))
        execute(_SQL["delete_outbox"], (run,))
        execute(_SQL["delete_chunks"], (run,))
        execute(_SQL["delete_events"], (run, one.keep))
    if one.instance is not None:
        execute(_SQL["delete_terms"], (one.instance,))
    if not one.keep:
        execute(_SQL["delete_kept_events"], (one.line,))
    return True
