"""``holdfast prune``: deletes finished runs of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.durations import describe
from holdfast.core.model import Status
from holdfast.ports import Runtime
from holdfast.store.protocol import PrunePosition, PruneRuns, Store
from holdfast.store_url import check_url, make_store

_LIMIT = 100


@dataclass(frozen=True, slots=True)
class PruneOptions:
    url: str
    schema: str | None
    older_than_ms: int
    workflow: str | None
    statuses: tuple[Status, ...]
    dry_run: bool


def prune(options: PruneOptions, say: Callable[[str], None]) -> None:
    """Delete the runs that the options select; ``say`` receives lines for the user."""
    check_url(options.url, options.schema)
    asyncio.run(_prune(options, say))


async def _prune(options: PruneOptions, say: Callable[[str], None]) -> None:
    store = make_store(options.url, options.schema, Runtime())
    await store.open(migrate=False)
    try:
        total = 0
        for status in options.statuses:
            count = await _prune_status(store, options, status)
            if count:
                say(f"{status.value}: {count}")
            total += count
        age = describe(options.older_than_ms)
        if options.dry_run:
            say(f"{total} runs ended more than {age} ago and would be deleted (dry run: nothing was deleted)")
            return
        say(f"{total} runs that ended more than {age} ago were deleted")
        pages = await _compact(store)
        if pages:
            say(f"{pages} pages of the file were returned to the file system")
    finally:
        await store.close()


async def _prune_status(store: Store, options: PruneOptions, status: Status) -> int:
    deleted, position = 0, PrunePosition()
    while True:
        pruned = await store.maintain(
            PruneRuns(
                options.workflow, status, options.older_than_ms, after=position, limit=_LIMIT, dry_run=options.dry_run
            )
        )
        deleted += pruned.runs
        if pruned.next is None:
            return deleted
        position = pruned.next


async def _compact(store: Store) -> int:
    """Return free pages until none is left; returns their number."""
    first: int | None = None
    while True:
        pruned = await store.maintain(PruneRuns("", Status.COMPLETE, 0, limit=0, compact=True))
        if first is None:
            first = pruned.free_pages
        if not pruned.free_pages:
            return first
