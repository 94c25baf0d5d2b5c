"""Lists of runs by error, queue, version and times, alone and combined, in both orders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.filters import TimeRange
from holdfast.core.model import Status
from holdfast.store.protocol import Attributes, Condition, CurrentRuns, NewRun, OnReuse, Term
from store.world import FLOW, World


def error(name: str) -> bytes:
    return json.dumps({"name": name, "message": '"name":"x"'}, separators=(",", ":"), ensure_ascii=False).encode()


async def _failed(world: World, id: str, name: str, **options: Any) -> None:
    task = await world.start_claimed(id, **options)
    await world.finish(task, Status.ERRORED, error=error(name))


async def _orders(world: World) -> int:
    """Six runs, a second apart: r0 and r3 failed with KeyError, r1 with OSError, r2 completed, r4 and r5 are open."""
    start = world.now()
    terms = Attributes(None, b"{}", [Term("k", 1)])
    await _failed(world, "r0", "KeyError", attributes=terms)
    world.clock.advance(1000)
    await _failed(world, "r1", "OSError", attributes=terms, queue="slow")
    world.clock.advance(1000)
    await world.finish(await world.start_claimed("r2", queue="slow"))
    world.clock.advance(1000)
    await _failed(world, "r3", "KeyError", workflow="other", queue="slow")
    world.clock.advance(1000)
    await world.start("r4", attributes=terms, version="2026-11")
    world.clock.advance(1000)
    await world.start("r5", workflow="other", queue="slow", version="2026-11")
    return start


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"error": "KeyError"}, ["r3", "r0"]),
    ({"error": "KeyError", "workflow": FLOW}, ["r0"]),
    ({"error": "KeyError", "status": Status.ERRORED}, ["r3", "r0"]),
    ({"error": "KeyError", "status": Status.COMPLETE}, []),
    ({"error": "KeyErro"}, []),
    ({"error": "KeyError", "queue": "slow"}, ["r3"]),
    ({"error": "KeyError", "queue": "default"}, ["r0"]),
    ({"error": "KeyError", "search": [Condition("k", "=", 1)]}, ["r0"]),
    ({"queue": "slow"}, ["r5", "r3", "r2", "r1"]),
    ({"queue": "default"}, ["r4", "r0"]),
    ({"queue": "slow", "status": Status.ACTIVE}, ["r5"]),
    ({"queue": "slow", "id_prefix": "r1"}, ["r1"]),
    ({"version": "2026-11"}, ["r5", "r4"]),
    ({"version": "2026-11", "workflow": FLOW}, ["r4"]),
    ({"version": "2026"}, []),
    ({"created": (1000, 4000)}, ["r3", "r2", "r1"]),
    ({"created": (1000, None), "workflow": FLOW}, ["r4", "r2", "r1"]),
    ({"created": (None, 1000)}, ["r0"]),
    ({"created": (1001, None), "search": [Condition("k", ">=", 0)]}, ["r4"]),
    ({"ended": (1000, None)}, ["r3", "r2", "r1"]),
    ({"ended": (None, 1001)}, ["r1", "r0"]),
    ({"ended": (0, None), "status": Status.ERRORED}, ["r3", "r1", "r0"]),
    ({"ended": (0, None), "status": Status.ACTIVE}, []),
    ({"ended": (0, None), "error": "OSError"}, ["r1"]),
    ({"ended": (1000, 3001), "created": (0, 3000), "queue": "slow"}, ["r2", "r1"]),
    ({"ended": (0, 0)}, []),
]


def _query(start: int, **conditions: Any) -> CurrentRuns:
    for name in ("created", "ended"):
        low, high = conditions.pop(name, (None, None))
        bounds = (None if low is None else start + low, None if high is None else start + high)
        conditions[name] = TimeRange(*bounds)
    return CurrentRuns(**conditions)


@pytest.mark.parametrize("many", [False, True], ids=["", "range of many runs"])
async def test_a_filter_selects_the_runs_that_meet_all_conditions(
    world: World, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:  # the store tests the runs in the order of the page; PostgreSQL has the limit in its functions
        monkeypatch.setattr("holdfast.store.sqlite.search._MANY", 0)
    start = await _orders(world)

    found = [(case, await world.store.read(_query(start, **case))) for case, _ in CASES]

    assert [(case, [run.instance_id for run in runs]) for case, runs in found] == CASES


async def test_an_ascending_list_is_the_reverse_of_the_descending_one(world: World) -> None:
    start = await _orders(world)

    for case, expected in CASES:
        runs = await world.store.read(_query(start, ascending=True, **case))
        assert [run.instance_id for run in runs] == expected[::-1], case


@pytest.mark.parametrize("ascending", [False, True])
async def test_pages_of_a_filter_hold_each_run_once(world: World, ascending: bool) -> None:
    start = await _orders(world)

    for case, expected in CASES:
        seen: list[str] = []
        before = None
        while page := await world.store.read(_query(start, limit=2, before=before, ascending=ascending, **case)):
            seen += [run.instance_id for run in page]
            before = page[-1].instance
        assert seen == (expected[::-1] if ascending else expected), case


async def test_only_the_current_run_of_an_instance_meets_a_filter(world: World) -> None:
    await _failed(world, "a", "KeyError")
    start = world.now()
    world.clock.advance(1000)
    await world.store.create([NewRun(FLOW, "a", on_reuse=OnReuse.ALLOW)])

    assert await world.ids(error="KeyError") == []
    assert await world.ids(ended=TimeRange(start, None)) == []
    assert await world.ids(created=TimeRange(None, start + 1000)) == []
    assert await world.ids(created=TimeRange(start + 1000, None)) == ["a"]


@pytest.mark.parametrize("name", ["Ä", 'a"b', "a\\b", "a\\", '\\"', "日本", "x" * 150, "a\x01b"])
async def test_any_error_name_can_be_searched_for(world: World, name: str) -> None:
    await _failed(world, "a", name)
    await _failed(world, "b", name + "More")
    await world.finish(await world.start_claimed("c"), Status.ERRORED, error=b"no JSON")

    assert await world.ids(error=name) == ["a"]
