"""Sending events: responses, refusals, and events close to the deadline of a wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_api import Api

from holdfast.testing import Harness

EVERY_STORE = True
EVENTS = "/waiter/instances/w/events"


async def test_the_response_to_an_event_has_the_status_at_that_time(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")

    assert await api.post(EVENTS, {"type": "go", "payload": [1]}) == {"status": {"status": "waiting"}, "accepted": True}
    assert (await api.until("waiter", "w", "complete"))["details"]["output"] == [1]


async def test_a_declared_event_that_does_not_fit_is_refused_with_the_field_path(api: Api) -> None:
    await api.create("approved", id="a")
    await api.until("approved", "a", "waiting")

    response = await api.send(
        "POST", "/approved/instances/a/events", json={"type": "nod", "payload": {"by": "ann", "at": "noon"}}
    )

    assert response.status_code == 400
    problem = response.json()
    assert problem["code"] == "EVENT_INVALID"
    assert "'nod'" in problem["message"]
    assert [(issue["path"], issue["type"]) for issue in problem["issues"]] == [(["at"], "datetime_type")]
    assert (await api.get("/approved/instances/a/history"))["events"] == []
    await api.post(
        "/approved/instances/a/events", {"type": "nod", "payload": {"by": "ann", "at": "2024-01-02T03:04:05Z"}}
    )
    assert (await api.until("approved", "a", "complete"))["details"]["output"] == "ann in 2024"


async def test_an_event_without_payload_has_null(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.post(EVENTS, {"type": "go"})

    await api.until("waiter", "w", "complete")
    assert (await api.get("/waiter/instances/w/history"))["events"][0]["payload"] is None


@pytest.mark.parametrize("end", ["complete", "terminated", "errored"])
async def test_a_run_that_ended_takes_no_events(api: Api, end: str) -> None:
    workflow = {"complete": "nothing", "errored": "failing", "terminated": "waiter"}[end]
    await api.create(workflow, id="x")
    if end == "terminated":
        await api.post("/waiter/instances/x/terminate")
    await api.until(workflow, "x", end)

    refused = await api.refused("POST", f"/{workflow}/instances/x/events", json={"type": "go"})

    assert refused == (409, "INSTANCE_TERMINAL")
    assert (await api.get(f"/{workflow}/instances/x/history"))["events"] == []


async def test_an_event_creates_no_instance(api: Api) -> None:
    assert await api.refused("POST", EVENTS, json={"type": "go"}) == (404, "INSTANCE_NOT_FOUND")
    assert await api.count("waiter") == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize("type_", ["", "-go", "a b", "x" * 101, "go\n", "a/b", ".go", "ö"])
async def test_an_event_type_that_does_not_match_the_pattern_is_refused(api: Api, type_: str) -> None:
    await api.create("waiter", id="w")

    assert await api.refused("POST", EVENTS, json={"type": type_}) == (400, "INVALID_EVENT_TYPE")
    assert (await api.get("/waiter/instances/w/history"))["events"] == []


async def test_an_event_type_may_have_dots_and_100_characters(api: Api) -> None:
    await api.create("waiter", id="w")

    for type_ in ("order.paid.v2", "x" * 100):
        await api.post(EVENTS, {"type": type_})
    events = (await api.get("/waiter/instances/w/history"))["events"]
    assert [event["type"] for event in events] == ["order.paid.v2", "x" * 100]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "body",
    [{}, {"type": 5}, {"type": None}, {"type": "go", "more": 1}, {"type": "go", "id": ""}, {"type": "go", "id": 5}],
)
async def test_an_event_body_with_invalid_fields_is_refused(api: Api, body: Any) -> None:
    await api.create("waiter", id="w")

    assert await api.refused("POST", EVENTS, json=body) == (400, "VALIDATION_ERROR")


async def test_the_same_event_id_is_delivered_once(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.post("/waiter/instances/w/pause")

    await asyncio.gather(*(api.post(EVENTS, {"type": "x", "id": "once"}) for _ in range(5)))
    await api.post(EVENTS, {"type": "x", "id": "twice"})

    assert len((await api.get("/waiter/instances/w/history"))["events"]) == 2


async def test_events_are_consumed_in_the_order_of_arrival(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.post("/waiter/instances/w/pause")
    for n in range(3):
        await api.post(EVENTS, {"type": "go", "payload": n})
    await api.post("/waiter/instances/w/resume")

    assert (await api.until("waiter", "w", "complete"))["details"]["output"] == 0
    consumed = [event["consumedByStepKey"] for event in (await api.get("/waiter/instances/w/history"))["events"]]
    assert consumed == ["go", None, None]


# --- the deadline of a wait is one hour


async def test_an_event_sent_before_the_deadline_counts_although_it_is_processed_later(
    h: Harness, virtual: Api
) -> None:
    await virtual.create("waiter", id="w")
    await h.run_until_idle()
    await h.advance("59 minutes 59 seconds", run=False)
    await virtual.post(EVENTS, {"type": "go", "payload": "in time"})
    await h.advance("1 hour", run=False)

    await h.run_until_idle()

    assert (await virtual.get("/waiter/instances/w"))["details"]["output"] == "in time"


async def test_an_event_sent_after_the_deadline_never_counts(h: Harness, virtual: Api) -> None:
    await virtual.create("waiter", id="w")
    await h.run_until_idle()
    await h.advance("1 hour 1 second", run=False)
    await virtual.post(EVENTS, {"type": "go", "payload": "too late"})

    await h.run_until_idle()

    instance = await virtual.get("/waiter/instances/w")
    assert instance["details"]["error"]["name"] == "WaitForEventTimeoutError"
    [event] = (await virtual.get("/waiter/instances/w/history"))["events"]
    assert (event["deliveredAt"], event["consumedByStepKey"]) == (None, None)


async def test_an_event_to_a_paused_run_counts_if_it_arrived_before_the_deadline(h: Harness, virtual: Api) -> None:
    for id_, wait in (("early", "30 minutes"), ("late", "90 minutes")):
        await virtual.create("waiter", id=id_)
        await h.run_until_idle()
        await virtual.post(f"/waiter/instances/{id_}/pause")
        await h.advance(wait)
        await virtual.post(f"/waiter/instances/{id_}/events", {"type": "go", "payload": id_})
        await h.advance("2 hours")
        await virtual.post(f"/waiter/instances/{id_}/resume")
        await h.run_until_idle()

    assert (await virtual.get("/waiter/instances/early"))["details"]["output"] == "early"
    assert (await virtual.get("/waiter/instances/late"))["details"]["error"]["name"] == "WaitForEventTimeoutError"
