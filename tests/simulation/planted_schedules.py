"""Bugs of schedules, as patches: the owner of an attribute, its name, and a function from the original to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.core.model import from_ms
from holdfast.kernel import schedule_rules
from holdfast.kernel.schedule_content import Overlap
from holdfast.runner.schedules import ScheduleLoop
from holdfast.store.sqlite import schedules

Patches = list[tuple[Any, str, Callable[[Any], Any]]]


def _update_any_revision(original: Any) -> Any:
    return {**original, "update": original["update"].replace("revision = ?14", "?14 > 0")}


def _start_after_change(_original: Any) -> Any:
    """Create the runs in a transaction of their own, after the one that advances the schedules."""

    async def write(loop: Any, changes: Any) -> None:
        if changes:
            done = await loop._store.change_schedules([replace(change, runs=()) for change in changes])
            runs = [run for change, one in zip(changes, done, strict=True) if one.applied for run in change.runs]
            if runs:
                await loop._store.create(runs)
                loop._hub.work()

    return write


def _settle_as_allowed(original: Any) -> Any:
    def settle(taking: Any, tick: Any) -> None:
        overlap, tick.overlap = tick.overlap, Overlap.ALLOW.value
        original(taking, tick)
        tick.overlap = overlap

    return settle


def _first_of_all(_original: Any) -> Any:
    return lambda taking: None if taking._row.next_tick is None else from_ms(taking._row.next_tick)


BUGS: dict[str, Patches] = {
    "schedule_changed_at_any_revision": [(schedules, "_SQL", _update_any_revision)],
    "tick_lost_by_crash": [(ScheduleLoop, "_write", _start_after_change)],
    "overlap_ignored": [(schedule_rules._TakeUp, "_settle", _settle_as_allowed)],
    "catch_up_too_wide": [(schedule_rules._TakeUp, "_first", _first_of_all)],
}
