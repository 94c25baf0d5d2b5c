"""Schedules over HTTP: created, changed, triggered and read; every change is audited."""

from __future__ import annotations

import pytest
from http_api import Api

from holdfast.testing import Harness

BASE = "/_schedules"


async def test_a_schedule_is_created_changed_and_deleted(h: Harness, virtual: Api) -> None:
    new = {"name": "nightly", "workflow": "waiter", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "catchUp": "1h"}

    created = await virtual.post(BASE, new | {"overlap": "queue_one", "queue": "default"})
    assert (created["name"], created["workflowName"], created["overlap"]) == ("nightly", "waiter", "queue_one")
    assert created["spec"]["text"] == "cron 0 3 * * * (Europe/Berlin)"
    assert created["nextTicks"][0] == "2030-01-01T02:00:00.000Z"
    assert created["lastRuns"] == []
    changes = {"every": "6h", "catchUp": None, "overlap": "allow"}
    changed = (await virtual.send("PATCH", f"{BASE}/nightly", json=changes)).json()
    assert (changed["spec"]["everyMs"], changed["catchUp"], changed["overlap"]) == (21_600_000, None, "allow")
    assert [one["name"] for one in (await virtual.get(BASE))["schedules"]] == ["nightly"]
    assert (await virtual.send("DELETE", f"{BASE}/nightly")).json() == {"ok": True}
    assert (await virtual.get(BASE)) == {"schedules": [], "hasNextPage": False}
    actions = [record.action for record in (await h.app.audit()).items]
    assert actions == ["schedule_delete", "schedule_update", "schedule_create"]


async def test_start_options_of_a_schedule_are_shown_replaced_and_removed(h: Harness, virtual: Api) -> None:
    options = {"runTimeout": "1h", "retry": {"limit": 2, "delay": "1m"}, "memo": {"by": "ann"}, "summary": "nightly"}

    created = await virtual.post(BASE, {"name": "s", "workflow": "waiter", "every": "1h"} | options)
    assert (created["options"]["runTimeout"], created["options"]["retry"]["delayMs"]) == ("1 h", 60_000)
    changes = {"runTimeout": None, "retry": None, "taskTimeout": "5s", "reason": "it is fast now"}
    changed = (await virtual.send("PATCH", f"{BASE}/s", json=changes)).json()
    assert changed["options"] == {"taskTimeout": "5 s", "memo": {"by": "ann"}, "summary": "nightly"}
    assert (await h.app.audit()).items[0].reason == "it is fast now"


async def test_the_number_of_last_runs_can_be_chosen(h: Harness, virtual: Api) -> None:
    await virtual.post(BASE, {"name": "s", "workflow": "waiter", "every": "1h"})
    for _ in range(2):
        await virtual.post(f"{BASE}/s/trigger")

    shown = [len((await virtual.get(f"{BASE}/s?runs={n}"))["lastRuns"]) for n in (0, 1, 10)]
    assert shown == [0, 1, 2]
    assert (await virtual.send("GET", f"{BASE}/s?runs=101")).status_code == 400


async def test_a_paused_schedule_can_be_triggered_and_backfilled(h: Harness, virtual: Api) -> None:
    await virtual.post(BASE, {"name": "s", "workflow": "waiter", "every": "1h"})

    assert await virtual.post(f"{BASE}/s/pause", {"note": "moving"}) == {"ok": True}
    triggered = await virtual.post(f"{BASE}/s/trigger", {"reason": "asked for"})
    assert triggered == {"workflowName": "waiter", "id": "s-20300101T000000Z-m1"}
    period = {"start": "2029-12-31T20:00:00Z", "end": "2029-12-31T22:00:00Z", "overlap": "allow", "reason": "lost"}
    assert await virtual.post(f"{BASE}/s/backfill", period) == {"ticks": 3}
    await h.run_until_idle()
    shown = await virtual.get(f"{BASE}/s")
    assert (shown["paused"], shown["note"], shown["nextTicks"]) == (True, "moving", [])
    assert [run["cause"] for run in shown["lastRuns"]] == ["backfill"] * 3 + ["trigger"]
    assert await virtual.post(f"{BASE}/s/resume") == {"ok": True}
    reasons = {record.action: record.reason for record in (await h.app.audit()).items}
    assert (reasons["schedule_trigger"], reasons["schedule_backfill"]) == ("asked for", "lost")
    preview = await virtual.get(f"{BASE}/s/preview?count=2")
    assert preview == {"ticks": ["2030-01-01T01:00:00.000Z", "2030-01-01T02:00:00.000Z"]}


async def test_a_list_of_schedules_has_pages(virtual: Api) -> None:
    for name in ("a", "b", "c"):
        await virtual.post(BASE, {"name": name, "workflow": "waiter", "every": "1h"})

    first = await virtual.get(f"{BASE}?pageSize=2")
    assert ([one["name"] for one in first["schedules"]], first["hasNextPage"]) == (["a", "b"], True)
    second = await virtual.get(f"{BASE}?pageSize=2&cursor={first['nextCursor']}")
    assert ([one["name"] for one in second["schedules"]], second["hasNextPage"]) == (["c"], False)
    assert first["cursor"] == first["nextCursor"]
    assert not {"cursor", "nextCursor"} & second.keys()


@pytest.mark.parametrize("cursor", ["", "b", "n:", "n:-", "i3", "!", "n:" + "x" * 65])
async def test_a_cursor_that_no_list_of_schedules_returned_is_refused(virtual: Api, cursor: str) -> None:
    assert await virtual.refused("GET", BASE, params={"cursor": cursor}) == (400, "INVALID_CURSOR")


@pytest.mark.parametrize("start", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_a_schedule_does_not_begin_at_the_ends_of_the_calendar(virtual: Api, start: str) -> None:
    new = {"name": "s", "workflow": "waiter", "every": "1h"}
    assert await virtual.refused("POST", BASE, json=new | {"start": start}) == (400, "INVALID_OPTION")

    await virtual.post(BASE, new)
    assert await virtual.refused("PATCH", f"{BASE}/s", json={"start": start}) == (400, "INVALID_OPTION")
    period = {"start": start, "end": "2030-01-01T00:00:00Z"}
    assert await virtual.refused("POST", f"{BASE}/s/backfill", json=period) == (400, "INVALID_OPTION")
