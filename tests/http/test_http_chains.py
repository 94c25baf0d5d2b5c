"""Chains over HTTP: how they are described, what their steps are at, and what they tell the world."""

from __future__ import annotations

from typing import Any

import pytest
from http_api import Api
from http_shop import Gates

from holdfast.testing import Harness

EVERY_STORE = True

ONE = "/order.process/instances/c"


async def begun(h: Harness, api: Api, params: str | None = None) -> Any:
    """An instance that has gone as far as it can by itself."""
    await api.create("order.process", params, id="c")
    await h.run_until_idle()
    return await api.get(ONE)


async def states(api: Api, **query: Any) -> list[tuple[str, str]]:
    return [(step["name"], step["state"]) for step in (await api.get(f"{ONE}/history", **query))["steps"]]


# --- one instance


async def test_a_chain_is_described_in_its_own_words_too(h: Harness, virtual: Api) -> None:
    found = await begun(h, virtual)

    meta = found["meta"]
    assert found["details"] == {"status": "waiting"}
    assert (meta["kind"], meta["workflowVersion"], meta["nativeStatus"]) == ("chain", 2, "RUNNING")
    assert meta["why"].startswith("waiting for an event of type 'paid' in 'PAY' until")
    step = meta["currentStep"]
    assert {key: step[key] for key in ("stepKey", "name", "status", "state", "stepSeq", "waitEventType")} == {
        "stepKey": "PAY", "name": "PAY", "status": "waiting", "state": "WAITING", "stepSeq": 1, "waitEventType": "paid",
    }  # fmt: skip
    assert step["wakeAt"] is not None
    assert "killed" not in meta


@pytest.mark.parametrize(
    ("params", "steering", "status", "native"),
    [
        (None, {"events": {"type": "paid"}}, "complete", "COMPLETED"),
        ("stolen", {}, "errored", "FAILED"),
        (None, {"cancel": {"reason": "enough"}}, "cancelled", "CANCELED"),
        (None, {"terminate": None}, "terminated", "CANCELED"),
        (None, {"pause": None}, "paused", "RUNNING"),
        ("busy", {}, "waiting", "RUNNING"),
    ],
)
async def test_every_status_has_a_word_of_chains(
    h: Harness, virtual: Api, params: str | None, steering: dict[str, Any], status: str, native: str
) -> None:
    await begun(h, virtual, params)
    for action, body in steering.items():
        await virtual.post(f"{ONE}/{action}", body)
        await h.run_until_idle()

    found = await virtual.get(ONE)
    [listed] = (await virtual.get("/order.process/instances"))["instances"]

    assert (found["details"]["status"], found["meta"]["nativeStatus"]) == (status, native)
    assert (listed["details"], listed["kind"], listed["nativeStatus"]) == (found["details"], "chain", native)


async def test_a_workflow_has_nothing_of_chains_and_graphs(h: Harness, virtual: Api) -> None:
    await virtual.create("order", {"id": "o", "total": 5}, id="o")
    await h.run_until_idle()

    found = await virtual.get("/order/instances/o")
    [listed] = (await virtual.get("/order/instances"))["instances"]
    history = await virtual.get("/order/instances/o/history")

    assert set(found["meta"]) == {
        "workflowName", "kind", "runNumber", "params", "createdAt", "updatedAt", "startedAt", "completedAt", "why",
        "currentStep",
    }  # fmt: skip
    assert set(listed) == {"id", "details", "createdAt"}
    for step in (found["meta"]["currentStep"], *history["steps"]):
        assert not {"state", "stepSeq"} & set(step)


# --- history


async def test_all_steps_are_there_from_the_start_in_their_order(h: Harness, virtual: Api) -> None:
    await virtual.create("order.process", id="c")
    before = await states(virtual)
    await h.run_until_idle()
    at_rest = await states(virtual)
    await virtual.post(f"{ONE}/events", {"type": "paid", "payload": {"by": "ann"}})
    await h.run_until_idle()

    assert before == [("VALIDATE", "READY"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    assert at_rest == [("VALIDATE", "DONE"), ("PAY", "WAITING"), ("SHIP", "PENDING")]
    history = await virtual.get(f"{ONE}/history")
    assert [(one["stepSeq"], one["state"], one["status"], one["result"]) for one in history["steps"]] == [
        (0, "DONE", "completed", {"ok": True}),
        (1, "DONE", "completed", {"by": "ann"}),
        (2, "DONE", "completed", {"shipped": {"by": "ann"}}),
    ]
    [event] = history["events"]
    assert (event["type"], event["consumedByStepKey"]) == ("paid", "PAY")


async def test_a_step_says_how_it_may_be_tried(h: Harness, virtual: Api) -> None:
    await begun(h, virtual, "busy")

    first, second, _ = (await virtual.get(f"{ONE}/history"))["steps"]

    assert (first["type"], first["attempts"], first["maxAttempts"], first["timeoutMs"]) == ("do", 1, 3, 60_000)
    assert (first["state"], first["status"]) == ("READY", "waiting")
    assert first["nextRetryAt"] is not None
    assert first["error"]["message"] == "gateway busy"
    assert (second["state"], second["attempts"], second["maxAttempts"], second["timeoutMs"]) == ("PENDING", 0, 5, None)
    assert "error" not in second


async def test_a_dead_step_ends_the_chain_and_the_rest_stays_pending(h: Harness, virtual: Api) -> None:
    found = await begun(h, virtual, "stolen")

    assert await states(virtual) == [("VALIDATE", "DEAD"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    assert found["details"]["error"]["message"].endswith("card stolen")
    assert (found["meta"]["currentStep"]["name"], found["meta"]["currentStep"]["state"]) == ("VALIDATE", "DEAD")


async def test_steps_are_paged_and_turned_round_as_those_of_workflows(h: Harness, virtual: Api) -> None:
    await begun(h, virtual)

    first = await virtual.get(f"{ONE}/history", pageSize=2)
    rest = await virtual.get(f"{ONE}/history", pageSize=2, stepsCursor=first["stepsCursor"])

    assert [step["stepSeq"] for page in (first, rest) for step in page["steps"]] == [0, 1, 2]
    assert (first["stepsHasNextPage"], rest["stepsHasNextPage"]) == (True, False)
    assert [name for name, _ in await states(virtual, order="desc")] == ["SHIP", "PAY", "VALIDATE"]


async def test_a_restart_begins_with_the_same_steps_and_the_old_run_stays(h: Harness, virtual: Api) -> None:
    await begun(h, virtual, "stolen")
    await virtual.post(f"{ONE}/restart")

    assert await states(virtual) == [("VALIDATE", "READY"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    assert await states(virtual, runNumber=0) == [("VALIDATE", "DEAD"), ("PAY", "PENDING"), ("SHIP", "PENDING")]
    meta = (await virtual.get(ONE))["meta"]
    assert (meta["runNumber"], meta["workflowVersion"], meta["nativeStatus"]) == (1, 2, "RUNNING")


async def test_an_input_that_does_not_fit_starts_no_chain(virtual: Api) -> None:
    refused = await virtual.refused("POST", "/order.process/instances", json={"params": 5})

    assert refused == (400, "WORKFLOW_PARAMS_INVALID")
    assert await virtual.count("order.process") == 0


# --- the outbox


async def test_the_outbox_shows_what_is_to_be_told_and_what_became_of_it(
    h: Harness, virtual: Api, gates: Gates
) -> None:
    await virtual.create("order.process", id="c")
    assert await virtual.get(f"{ONE}/outbox") == {"events": []}

    gates.door("post").set()
    await h.run_until_idle()

    first, second = (await virtual.get(f"{ONE}/outbox"))["events"]
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


async def test_parked_events_are_told_again_when_somebody_asks(h: Harness, virtual: Api, gates: Gates) -> None:
    await begun(h, virtual)
    first, _ = (await virtual.get(f"{ONE}/outbox"))["events"]
    assert (first["state"], first["attempts"], first["error"]) == ("pending", 1, "ConnectionError: nobody is there")
    assert first["nextAttemptAt"] is not None
    assert await virtual.post(f"{ONE}/outbox/redeliver") == {"redelivered": 0}

    await h.advance("1 minute")
    parked = (await virtual.get(f"{ONE}/outbox"))["events"]
    assert [(one["state"], one["attempts"], one["nextAttemptAt"]) for one in parked] == [("parked", 2, None)] * 2
    assert all(one["parkedAt"] is not None for one in parked)

    gates.door("post").set()
    assert await virtual.post(f"{ONE}/outbox/redeliver") == {"redelivered": 2}
    assert {one["state"] for one in (await virtual.get(f"{ONE}/outbox"))["events"]} == {"pending"}
    await h.run_until_idle()
    assert {one["state"] for one in (await virtual.get(f"{ONE}/outbox"))["events"]} == {"delivered"}
    assert gates.entered == ["order.process/c/0/1", "order.process/c/0/2"]
    assert await virtual.post(f"{ONE}/outbox/redeliver") == {"redelivered": 0}


@pytest.mark.parametrize("workflow", ["waiter", "pipeline"])
async def test_who_tells_the_world_nothing_has_an_empty_outbox(virtual: Api, workflow: str) -> None:
    await virtual.create(workflow, id="x")

    assert await virtual.get(f"/{workflow}/instances/x/outbox") == {"events": []}
    assert await virtual.post(f"/{workflow}/instances/x/outbox/redeliver") == {"redelivered": 0}


@pytest.mark.parametrize(("method", "path"), [("GET", "outbox"), ("POST", "outbox/redeliver")])
async def test_an_outbox_that_is_not_there(virtual: Api, method: str, path: str) -> None:
    assert await virtual.refused(method, f"/nobody/instances/c/{path}") == (404, "WORKFLOW_NOT_FOUND")
    assert await virtual.refused(method, f"{ONE}/{path}") == (404, "INSTANCE_NOT_FOUND")
    assert await virtual.refused(method, f"/order.process/instances/-c/{path}") == (400, "INVALID_INSTANCE_ID")


async def test_an_outbox_has_its_methods(virtual: Api) -> None:
    assert await virtual.refused("POST", f"{ONE}/outbox") == (405, "METHOD_NOT_ALLOWED")
    assert await virtual.refused("GET", f"{ONE}/outbox/redeliver") == (405, "METHOD_NOT_ALLOWED")
