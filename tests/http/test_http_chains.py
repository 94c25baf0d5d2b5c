"""Chains over HTTP: descriptions, states of steps, and the outbox."""

from __future__ import annotations

from typing import Any

import pytest
from http_api import Api
from http_shop import Gates

from holdfast.testing import Harness

EVERY_STORE = True

INSTANCE = "/order.process/instances/c"


async def start_and_run(h: Harness, api: Api, params: str | None = None) -> Any:
    """Start an instance and run it until it waits or ends; return the instance."""
    await api.create("order.process", params, id="c")
    await h.run_until_idle()
    return await api.get(INSTANCE)


async def states(api: Api, **query: Any) -> list[tuple[str, str]]:
    return [(step["name"], step["state"]) for step in (await api.get(f"{INSTANCE}/history", **query))["steps"]]


# --- one instance


async def test_a_chain_is_described_with_its_native_status(h: Harness, virtual: Api) -> None:
    instance = await start_and_run(h, virtual)

    meta = instance["meta"]
    assert instance["details"] == {"status": "waiting"}
    assert (meta["kind"], meta["workflowVersion"], meta["nativeStatus"]) == ("chain", 2, "RUNNING")
    assert meta["why"].startswith("waiting for an event of type 'paid' in 'PAY' until")
    step = meta["currentStep"]
    assert {key: step[key] for key in ("stepKey", "name", "status", "state", "stepSeq", "waitEventType")} == {
        "stepKey": "PAY", "name": "PAY", "status": "waiting", "state": "WAITING", "stepSeq": 1, "waitEventType": "paid",
    }  # fmt: skip
    assert step["wakeAt"] is not None
    assert "killed" not in meta


@pytest.mark.parametrize(
    ("params", "requests", "status", "native"),
    [
        (None, {"events": {"type": "paid"}}, "complete", "COMPLETED"),
        ("stolen", {}, "errored", "FAILED"),
        (None, {"cancel": {"reason": "enough"}}, "cancelled", "CANCELED"),
        (None, {"terminate": None}, "terminated", "CANCELED"),
        (None, {"pause": None}, "paused", "RUNNING"),
        ("busy", {}, "waiting", "RUNNING"),
    ],
)
async def test_every_status_has_a_native_status_of_chains(
    h: Harness, virtual: Api, params: str | None, requests: dict[str, Any], status: str, native: str
) -> None:
    await start_and_run(h, virtual, params)
    for action, body in requests.items():
        await virtual.post(f"{INSTANCE}/{action}", body)
        await h.run_until_idle()

    instance = await virtual.get(INSTANCE)
    [listed] = (await virtual.get("/order.process/instances"))["instances"]

    assert (instance["details"]["status"], instance["meta"]["nativeStatus"]) == (status, native)
    assert (listed["details"], listed["kind"], listed["nativeStatus"]) == (instance["details"], "chain", native)


async def test_a_workflow_has_no_fields_of_chains_and_graphs(h: Harness, virtual: Api) -> None:
    await virtual.create("order", {"id": "o", "total": 5}, id="o")
    await h.run_until_idle()

    instance = await virtual.get("/order/instances/o")
    [listed] = (await virtual.get("/order/instances"))["instances"]
    history = await virtual.get("/order/instances/o/history")

    assert set(instance["meta"]) == {
        "workflowName", "kind", "runNumber", "params", "createdAt", "updatedAt", "startedAt", "completedAt", "why",
        "whyParts", "currentStep",
    }  # fmt: skip
    assert set(listed) == {"id", "details", "createdAt"}
    for step in (instance["meta"]["currentStep"], *history["steps"]):
        assert not {"state", "stepSeq"} & set(step)


# --- history


async def test_all_steps_of_a_chain_are_shown_in_order_from_the_start(h: Harness, virtual: Api) -> None:
    await virtual.create("order.process", id="c")
    before = await states(virtual)
    await h.run_until_idle()
    suspended = await states(virtual)
    await virtual.post(f"{INSTANCE}/events", {"type": "paid", "payload": {"by": "ann"}})
    await h.run_until_idle()

    assert before == [("VALIDATE", "READY"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    assert suspended == [("VALIDATE", "DONE"), ("PAY", "WAITING"), ("SHIP", "PENDING")]
    history = await virtual.get(f"{INSTANCE}/history")
    assert [(step["stepSeq"], step["state"], step["status"], step["result"]) for step in history["steps"]] == [
        (0, "DONE", "completed", {"ok": True}),
        (1, "DONE", "completed", {"by": "ann"}),
        (2, "DONE", "completed", {"shipped": {"by": "ann"}}),
    ]
    [event] = history["events"]
    assert (event["type"], event["consumedByStepKey"]) == ("paid", "PAY")


async def test_a_step_shows_its_attempts_and_their_limits(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual, "busy")

    first, second, _ = (await virtual.get(f"{INSTANCE}/history"))["steps"]

    assert (first["type"], first["attempts"], first["maxAttempts"], first["timeoutMs"]) == ("do", 1, 3, 60_000)
    assert (first["state"], first["status"]) == ("READY", "waiting")
    assert first["nextRetryAt"] is not None
    assert first["error"]["message"] == "gateway busy"
    assert (second["state"], second["attempts"], second["maxAttempts"], second["timeoutMs"]) == ("PENDING", 0, 5, None)
    assert "error" not in second


async def test_a_dead_step_ends_the_chain_and_the_rest_stays_pending(h: Harness, virtual: Api) -> None:
    instance = await start_and_run(h, virtual, "stolen")

    assert await states(virtual) == [("VALIDATE", "DEAD"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    assert instance["details"]["error"]["message"].endswith("card stolen")
    assert (instance["meta"]["currentStep"]["name"], instance["meta"]["currentStep"]["state"]) == ("VALIDATE", "DEAD")


async def test_steps_of_chains_are_paged_and_can_be_listed_in_reverse(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual)

    first = await virtual.get(f"{INSTANCE}/history", pageSize=2)
    rest = await virtual.get(f"{INSTANCE}/history", pageSize=2, stepsCursor=first["stepsCursor"])

    assert [step["stepSeq"] for page in (first, rest) for step in page["steps"]] == [0, 1, 2]
    assert (first["stepsHasNextPage"], rest["stepsHasNextPage"]) == (True, False)
    assert [name for name, _ in await states(virtual, order="desc")] == ["SHIP", "PAY", "VALIDATE"]


async def test_a_restart_begins_with_the_same_steps_and_the_old_run_stays(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual, "stolen")
    await virtual.post(f"{INSTANCE}/restart")

    assert await states(virtual) == [("VALIDATE", "READY"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    assert await states(virtual, runNumber=0) == [("VALIDATE", "DEAD"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    meta = (await virtual.get(INSTANCE))["meta"]
    assert (meta["runNumber"], meta["workflowVersion"], meta["nativeStatus"]) == (1, 2, "RUNNING")


async def test_an_invalid_input_starts_no_chain(virtual: Api) -> None:
    refused = await virtual.refused("POST", "/order.process/instances", json={"params": 5})

    assert refused == (400, "WORKFLOW_PARAMS_INVALID")
    assert await virtual.count("order.process") == 0


async def test_a_step_that_waits_is_not_counted_as_work(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual)
    await h.advance("1 hour")

    timeline = await virtual.get(f"{INSTANCE}/timeline")

    waiting = next(item for item in timeline["items"] if item["status"] == "waiting")
    assert "attempts" not in waiting
    assert timeline["workingMs"] < 60_000


# --- the outbox


async def test_the_outbox_shows_outbound_events_and_their_delivery(h: Harness, virtual: Api, gates: Gates) -> None:
    await virtual.create("order.process", id="c")
    assert await virtual.get(f"{INSTANCE}/outbox") == {"events": []}

    gates.door("outbox").set()
    await h.run_until_idle()

    first, second = (await virtual.get(f"{INSTANCE}/outbox"))["events"]
    await virtual.post(f"{INSTANCE}/restart")
    drawn = {number: await virtual.get(f"{INSTANCE}/chain", runNumber=number) for number in (0, 1)}
    assert {number: len(chain["outbox"]) for number, chain in drawn.items()} == {0: 2, 1: 0}
    assert first | {"createdAt": None, "deliveredAt": None} == {
        "id": "order.process/c/0/1",
        "type": "order.validated",
        "payload": {"\ud800": "\x00"},
        "step": "VALIDATE",
        "state": "delivered",
        "attempts": 0,
        "error": None,
        "createdAt": None,
        "nextAttemptAt": None,
        "deliveredAt": None,
        "parkedAt": None,
    }
    assert first["deliveredAt"].endswith("Z")
    assert first["createdAt"].endswith("Z")
    assert (second["type"], second["payload"], second["step"]) == ("payment.requested", None, "PAY")


async def test_parked_events_are_delivered_again_on_request(h: Harness, virtual: Api, gates: Gates) -> None:
    await start_and_run(h, virtual)
    first, _ = (await virtual.get(f"{INSTANCE}/outbox"))["events"]
    assert (first["state"], first["attempts"], first["error"]) == ("pending", 1, "ConnectionError: no route to host")
    assert first["nextAttemptAt"] is not None
    assert await virtual.post(f"{INSTANCE}/outbox/redeliver") == {"redelivered": 0}

    await h.advance("1 minute")
    parked = (await virtual.get(f"{INSTANCE}/outbox"))["events"]
    assert [(event["state"], event["attempts"], event["nextAttemptAt"]) for event in parked] == [
        ("parked", 2, None)
    ] * 2
    assert all(event["parkedAt"] is not None for event in parked)

    gates.door("outbox").set()
    assert await virtual.post(f"{INSTANCE}/outbox/redeliver", {"reason": "it answers again"}) == {"redelivered": 2}
    assert (await virtual.get("/_audit"))["records"][0]["reason"] == "it answers again"
    assert {event["state"] for event in (await virtual.get(f"{INSTANCE}/outbox"))["events"]} == {"pending"}
    await h.run_until_idle()
    assert {event["state"] for event in (await virtual.get(f"{INSTANCE}/outbox"))["events"]} == {"delivered"}
    assert gates.entered == ["order.process/c/0/1", "order.process/c/0/2"]
    assert await virtual.post(f"{INSTANCE}/outbox/redeliver") == {"redelivered": 0}


@pytest.mark.parametrize("workflow", ["waiter", "pipeline"])
async def test_a_run_without_outbound_events_has_an_empty_outbox(virtual: Api, workflow: str) -> None:
    await virtual.create(workflow, id="x")

    assert await virtual.get(f"/{workflow}/instances/x/outbox") == {"events": []}
    assert await virtual.post(f"/{workflow}/instances/x/outbox/redeliver") == {"redelivered": 0}


@pytest.mark.parametrize(("method", "path"), [("GET", "outbox"), ("POST", "outbox/redeliver")])
async def test_the_outbox_of_a_missing_instance_is_not_found(virtual: Api, method: str, path: str) -> None:
    assert await virtual.refused(method, f"/unknown/instances/c/{path}") == (404, "WORKFLOW_NOT_FOUND")
    assert await virtual.refused(method, f"{INSTANCE}/{path}") == (404, "INSTANCE_NOT_FOUND")
    assert await virtual.refused(method, f"/order.process/instances/-c/{path}") == (400, "INVALID_INSTANCE_ID")


async def test_the_outbox_routes_refuse_other_methods(virtual: Api) -> None:
    assert await virtual.refused("POST", f"{INSTANCE}/outbox") == (405, "METHOD_NOT_ALLOWED")
    assert await virtual.refused("GET", f"{INSTANCE}/outbox/redeliver") == (405, "METHOD_NOT_ALLOWED")
