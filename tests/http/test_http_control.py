"""Control requests: pause, resume, terminate, restart, cancel, and their effect on steps in flight."""

from __future__ import annotations

import asyncio

import pytest
from http_api import Api, until
from http_shop import Gates

from holdfast.testing import Harness

EVERY_STORE = True


async def wait_until_entered(gates: Gates, *keys: str) -> None:
    async def all_entered() -> bool:
        return set(keys) <= set(gates.entered)

    await until(all_entered)


@pytest.mark.parametrize("action", ["pause", "resume", "terminate", "restart", "cancel"])
async def test_each_control_request_returns_ok_and_needs_no_body(api: Api, action: str) -> None:
    await api.create("waiter", id="w")

    assert await api.post(f"/waiter/instances/w/{action}") == {"ok": True}
    assert (await api.send("POST", f"/waiter/instances/w/{action}", json={})).status_code in (200, 409)


@pytest.mark.promise("finality")
@pytest.mark.parametrize(
    ("action", "expected"),
    [("pause", 409), ("terminate", 409), ("cancel", 409), ("resume", 200), ("restart", 200)],
)
@pytest.mark.parametrize("end", ["complete", "errored", "terminated", "cancelled"])
async def test_a_run_that_has_ended_can_only_be_restarted(api: Api, action: str, expected: int, end: str) -> None:
    workflow = {"complete": "nothing", "errored": "failing"}.get(end, "waiter")
    await api.create(workflow, id="x")
    if workflow == "waiter":
        await api.post(f"/waiter/instances/x/{'terminate' if end == 'terminated' else 'cancel'}")
    await api.until(workflow, "x", end)

    response = await api.send("POST", f"/{workflow}/instances/x/{action}")

    assert response.status_code == expected
    if expected == 409:
        assert response.json()["code"] == "INSTANCE_TERMINAL"
    if action != "restart":
        assert await api.status(workflow, "x") == end


async def test_a_resume_of_a_run_that_is_not_paused_changes_nothing(api: Api) -> None:
    await api.create("waiter", id="w")
    before = await api.until("waiter", "w", "waiting")

    await api.post("/waiter/instances/w/resume")

    after = await api.get("/waiter/instances/w")
    assert {**after["meta"], "why": ""} == {**before["meta"], "why": ""}
    assert after["details"] == before["details"]


async def test_a_paused_run_keeps_events_and_continues_only_after_a_resume(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")
    await api.post("/waiter/instances/w/pause")

    sent = await api.post("/waiter/instances/w/events", {"type": "go", "payload": 7})
    await asyncio.sleep(0.1)
    assert sent == {"status": {"status": "paused"}, "accepted": True}
    assert await api.status("waiter", "w") == "paused"

    await api.post("/waiter/instances/w/resume")
    assert (await api.until("waiter", "w", "complete"))["details"]["output"] == 7


async def test_a_pause_lets_the_step_in_flight_end_and_starts_no_other(api: Api, gates: Gates) -> None:
    await api.create("doors", id="d")
    await wait_until_entered(gates, "d-0-0")
    await api.post("/doors/instances/d/pause")
    gates.door("d-0-0").set()

    await api.until("doors", "d", "paused")
    await asyncio.sleep(0.05)
    assert gates.entered == ["d-0-0"]
    [step] = (await api.get("/doors/instances/d/history"))["steps"]
    assert (step["status"], step["result"]) == ("completed", "through d-0-0")

    gates.door("d-0-1").set()
    await api.post("/doors/instances/d/resume")
    await api.until("doors", "d", "complete")
    assert gates.entered == ["d-0-0", "d-0-1"]


async def test_a_resume_withdraws_a_pause_that_has_not_taken_effect(api: Api, gates: Gates) -> None:
    await api.create("doors", id="d")
    await wait_until_entered(gates, "d-0-0")
    await api.post("/doors/instances/d/pause")
    await api.post("/doors/instances/d/resume")
    gates.door("d-0-0").set()
    gates.door("d-0-1").set()

    await api.until("doors", "d", "complete")
    assert gates.entered == ["d-0-0", "d-0-1"]


async def test_timers_keep_running_during_a_pause(h: Harness, virtual: Api) -> None:
    await virtual.create("sleepy", id="s")
    await h.run_until_idle()
    await virtual.post("/sleepy/instances/s/pause")
    await h.advance("2 hours")
    assert await virtual.status("sleepy", "s") == "paused"

    await virtual.post("/sleepy/instances/s/resume")
    await h.run_until_idle()

    assert (await virtual.get("/sleepy/instances/s"))["details"] == {"status": "complete", "output": "awake"}


@pytest.mark.promise("finality")
async def test_work_in_flight_never_overwrites_a_terminate(api: Api, gates: Gates) -> None:
    for n in range(10):
        await api.create("doors", 1, id=f"t{n}")
    await wait_until_entered(gates, *(f"t{n}-0-0" for n in range(10)))

    async def race(n: int) -> int:
        gates.door(f"t{n}-0-0").set()
        await asyncio.sleep(0)
        return (await api.send("POST", f"/doors/instances/t{n}/terminate")).status_code

    responses = await asyncio.gather(*(race(n) for n in range(10)))
    await asyncio.sleep(0.2)

    for n, response in enumerate(responses):  # a terminate that returned 200 is final
        assert await api.status("doors", f"t{n}") == ("terminated" if response == 200 else "complete")


async def test_a_terminated_step_leaves_no_result(api: Api, gates: Gates) -> None:
    await api.create("doors", 1, id="t")
    await wait_until_entered(gates, "t-0-0")
    await api.post("/doors/instances/t/terminate")
    gates.door("t-0-0").set()
    await asyncio.sleep(0.1)

    instance = await api.get("/doors/instances/t")
    assert instance["details"] == {"status": "terminated"}
    assert all(step["result"] is None for step in (await api.get("/doors/instances/t/history"))["steps"])


async def test_run_numbers_start_at_0_and_the_first_restart_gives_1(api: Api) -> None:
    await api.create("waiter", id="w")
    numbers = [(await api.get("/waiter/instances/w"))["meta"]["runNumber"]]
    for _ in range(2):
        await api.post("/waiter/instances/w/restart")
        numbers.append((await api.get("/waiter/instances/w"))["meta"]["runNumber"])

    assert numbers == [0, 1, 2]


async def test_a_restart_keeps_no_events_logs_or_results_of_the_old_run(api: Api, gates: Gates) -> None:
    await api.create("doors", 1, id="d")
    await wait_until_entered(gates, "d-0-0")
    await api.post("/doors/instances/d/events", {"type": "old", "payload": "old"})
    await api.post("/doors/instances/d/restart")
    await wait_until_entered(gates, "d-1-0")
    gates.door("d-0-0").set()  # the step of the old run ends now; its result is dropped
    await asyncio.sleep(0.1)

    new = await api.get("/doors/instances/d/history", includeLogs="true")
    assert new["runNumber"] == 1
    assert (new["events"], new["logs"]) == ([], [])
    assert all(step["result"] is None for step in new["steps"])

    gates.door("d-1-0").set()
    assert (await api.until("doors", "d", "complete"))["details"]["output"] == ["through d-1-0"]
    old = await api.get("/doors/instances/d/history/0")
    assert all(step["result"] is None for step in old["steps"])
    assert [event["payload"] for event in old["events"]] == ["old"]


async def test_an_event_sent_before_a_restart_does_not_reach_the_new_run(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")
    await api.post("/waiter/instances/w/pause")
    await api.post("/waiter/instances/w/events", {"type": "go", "payload": "old", "id": "1"})
    await api.post("/waiter/instances/w/restart")
    await api.until("waiter", "w", "waiting")

    await api.post("/waiter/instances/w/events", {"type": "go", "payload": "new", "id": "1"})

    assert (await api.until("waiter", "w", "complete"))["details"]["output"] == "new"


async def test_concurrent_control_requests_leave_an_instance_that_can_complete(api: Api, gates: Gates) -> None:
    actions = ["pause", "resume", "terminate", "restart", "cancel"]
    for round_ in range(5):
        id_ = f"m{round_}"
        await api.create("waiter", id=id_)
        responses = await asyncio.gather(
            *(api.send("POST", f"/waiter/instances/{id_}/{action}") for action in actions * 4),
            *(api.send("POST", f"/waiter/instances/{id_}/events", json={"type": "noise"}) for _ in range(4)),
        )
        assert {response.status_code for response in responses} <= {200, 409}

        await api.post(f"/waiter/instances/{id_}/restart")
        await api.until("waiter", id_, "waiting")
        await api.post(f"/waiter/instances/{id_}/events", {"type": "go", "payload": round_})
        assert (await api.until("waiter", id_, "complete"))["details"]["output"] == round_


async def test_a_reason_is_part_of_the_audit_record(api: Api) -> None:
    await api.create("waiter", id="reasoned")
    for action in ("pause", "resume", "terminate", "restart"):
        response = await api.send("POST", f"/waiter/instances/reasoned/{action}", json={"reason": f"to {action}"})
        assert response.status_code == 200, response.text
    records = (await api.get("/waiter/instances/reasoned/audit"))["records"]

    assert [(record["action"], record["reason"]) for record in reversed(records)] == [
        (action, f"to {action}") for action in ("pause", "resume", "terminate", "restart")
    ]
    response = await api.send("POST", "/waiter/instances/reasoned/pause", json={"reason": "x" * 2001})
    assert response.status_code == 400


async def test_an_ended_instance_can_be_deleted(api: Api) -> None:
    await api.create("waiter", id="old")
    assert await api.refused("DELETE", "/waiter/instances/old") == (409, "INVALID_STATE")
    await api.send("POST", "/waiter/instances/old/terminate")

    deleted = await api.send("DELETE", "/waiter/instances/old", json={"reason": "a test"})

    assert (deleted.status_code, deleted.json()) == (200, {"ok": True})
    assert await api.refused("GET", "/waiter/instances/old") == (404, "INSTANCE_NOT_FOUND")


async def test_a_start_and_an_event_with_a_reason_are_audited(virtual: Api, h: Harness) -> None:
    await virtual.post("/waiter/instances", {"id": "told", "reason": "ordered by phone"})
    await virtual.post("/waiter/instances", {"id": "silent"})
    await virtual.post("/waiter/instances/told/events", {"type": "go", "payload": 1, "reason": ""})
    await virtual.post("/waiter/instances/silent/events", {"type": "go", "payload": 1})

    records = [(record.action, record.target, record.reason) for record in (await h.app.audit()).items]
    assert records == [("send_event", "waiter/told", "event go"), ("start", "waiter/told", "ordered by phone")]
