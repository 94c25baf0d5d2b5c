"""Bugs of bulk actions, as patches: the owner of an attribute, its name, a function from the original to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.client import bulk
from holdfast.client.bulk import BulkResult
from holdfast.client.bulk_work import BulkProgress, BulkWork
from holdfast.store.sqlite import bulk as bulk_sql

Patches = list[tuple[Any, str, Callable[[Any], Any]]]


def _never_recorded(_original: Any) -> Any:
    """Act on all instances of a batch in which another process was interrupted."""

    async def is_recorded(_work: Any, _visited: Any) -> bool:
        return False

    return is_recorded


def _events_never_recorded(original: Any) -> Any:
    async def is_recorded(work: Any, visited: Any) -> bool:
        return bool(work._content["action"] != "send_event" and await original(work, visited))

    return is_recorded


def _skip_batch(_original: Any) -> Any:
    """Skip the rest of a batch in which another process was interrupted."""

    async def act_again(_work: Any, batch: Any) -> BulkResult:
        return BulkResult(skipped=len(batch.visited))

    return act_again


def _save_position_first(original: Any) -> Any:
    """Save the position after a batch before the requests of the batch are sent."""

    async def save(work: Any, **options: Any) -> Any:
        position, progress = work._position, work._progress
        if progress.batch is not None:
            work._position, work._progress = progress.batch.end, BulkProgress(progress.result)
        saved = await original(work, **options)
        work._position, work._progress = position, progress
        return saved

    return save


def _without_event_id(original: Any) -> Any:
    def init(work: Any, store: Any, actions: Any, *args: Any) -> None:
        original(work, store, actions, *args)
        work._act = actions.act(work._content["action"], work._content["arguments"])

    return init


def _never_after_a_lease(original: dict[str, str]) -> dict[str, str]:
    return original | {"take": original["take"].replace("lease_until <= ?2", "lease_until <= -?2")}


def _save_for_any_owner(original: dict[str, str]) -> dict[str, str]:
    return original | {"save": original["save"].replace("owner = ?2", "?2 NOTNULL")}


def _any_status(original: Any) -> Any:
    return lambda combined, *args, **options: original(combined._replace(status=None), *args, **options)


def _without_rest(_original: Any) -> Any:
    async def rest(_work: Any, _seconds: float) -> bool:
        return True

    return rest


BUGS: dict[str, Patches] = {
    "bulk_acts_again_after_crash": [(BulkWork, "_is_recorded", _never_recorded)],
    "bulk_batch_skipped_after_crash": [(BulkWork, "_act_again", _skip_batch)],
    "bulk_position_before_action": [(BulkWork, "_save", _save_position_first)],
    "bulk_event_without_id": [
        (BulkWork, "__init__", _without_event_id),
        (BulkWork, "_is_recorded", _events_never_recorded),
    ],
    "bulk_job_not_taken_up": [(bulk_sql, "_SQL", _never_after_a_lease)],
    "bulk_progress_of_lost_lease": [(bulk_sql, "_SQL", _save_for_any_owner)],
    "bulk_status_ignored": [(bulk, "current_runs", _any_status)],
    "bulk_rate_ignored": [(BulkWork, "_rest", _without_rest)],
}
