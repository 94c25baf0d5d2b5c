"""Creating instances: one, and many."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from http_api import Api

EVERY_STORE = True


async def test_the_response_to_a_creation_has_id_and_status(api: Api) -> None:
    created = await api.post("/echo/instances", {"id": "e-1", "params": {"a": 1}})

    assert created == {"id": "e-1", "details": {"status": "active"}}
    assert (await api.until("echo", "e-1", "complete"))["details"] == {"status": "complete", "output": {"a": 1}}


async def test_an_id_is_generated_if_none_is_given(api: Api) -> None:
    first, second = await api.post("/nothing/instances", {}), await api.post("/nothing/instances", {})

    assert first["id"] != second["id"]
    assert await api.until("nothing", first["id"], "complete")


@pytest.mark.parametrize("end", ["live", "complete", "terminated"])
async def test_an_existing_id_is_refused_also_after_the_run_has_ended(api: Api, end: str) -> None:
    workflow = "nothing" if end == "complete" else "waiter"
    await api.create(workflow, id="taken")
    if end == "terminated":
        await api.post(f"/{workflow}/instances/taken/terminate")
    if end != "live":
        await api.until(workflow, "taken", end)

    assert await api.refused("POST", f"/{workflow}/instances", json={"id": "taken"}) == (
        409,
        "INSTANCE_ID_ALREADY_EXISTS",
    )


async def test_five_concurrent_creates_of_one_id_create_one_instance(api: Api) -> None:
    for round_ in range(10):
        body = {"id": f"only-{round_}", "params": round_}
        responses = await asyncio.gather(*(api.send("POST", "/echo/instances", json=body) for _ in range(5)))
        assert Counter(response.status_code for response in responses) == {200: 1, 409: 4}
        await api.until("echo", f"only-{round_}", "complete")
    assert await api.count("echo") == 10


async def test_the_same_id_in_two_workflows_is_two_instances(api: Api) -> None:
    await api.create("nothing", id="same")
    await api.create("waiter", id="same")

    assert await api.status("waiter", "same") in ("active", "waiting")


@pytest.mark.above_the_store
@pytest.mark.parametrize("id", ["", "-a", "a b", "a.b", "ä", "a/b", "x" * 101, "a\n", "a\0"])
async def test_an_id_that_does_not_match_the_pattern_is_refused(api: Api, id: str) -> None:
    assert await api.refused("POST", "/nothing/instances", json={"id": id}) == (400, "INVALID_INSTANCE_ID")
    assert await api.count("nothing") == 0


async def test_the_longest_id_is_accepted(api: Api) -> None:
    assert await api.create("nothing", id="x" * 100) == "x" * 100


@pytest.mark.promise("clear-errors")
async def test_an_invalid_input_is_reported_field_by_field(api: Api) -> None:
    response = await api.send("POST", "/order/instances", json={"params": {"id": "o", "total": "many"}})

    assert (response.status_code, response.json()["code"]) == (400, "WORKFLOW_PARAMS_INVALID")
    [issue] = response.json()["issues"]
    assert issue["path"] == ["total"]
    assert "integer" in issue["message"]
    assert await api.count("order") == 0


@pytest.mark.promise("clear-errors")
@pytest.mark.parametrize(
    ("workflow", "body"),
    [
        ("order", {}),
        ("order", {"params": None}),
        ("order", {"params": {"id": "o"}}),
        ("order", {"params": []}),
        ("nothing", {"params": {}}),
        ("strict", {"params": {"name": "n", "more": 1}}),
        ("strict", {"params": {"name": "n", "count": "1"}}),
    ],
)
async def test_an_invalid_input_starts_nothing(api: Api, workflow: str, body: Any) -> None:
    assert await api.refused("POST", f"/{workflow}/instances", json=body) == (400, "WORKFLOW_PARAMS_INVALID")
    assert await api.count(workflow) == 0


async def test_an_input_with_a_default_may_be_left_out(api: Api) -> None:
    created = await api.create("failing")

    instance = await api.until("failing", created, "errored")
    assert instance["meta"]["params"] is None
    assert instance["details"]["status"] == "errored"
    assert (instance["details"]["error"]["name"], instance["details"]["error"]["message"]) == ("CardDeclined", "no")


async def test_a_workflow_that_is_not_registered_is_not_found(api: Api) -> None:
    for path in ("/os.system/instances", "/os.system/instances/batch"):
        assert await api.refused("POST", path, json={}) == (404, "WORKFLOW_NOT_FOUND")


# --- batches


async def test_a_batch_starts_all_new_instances(api: Api) -> None:
    await api.create("echo", 0, id="b")

    created = await api.post(
        "/echo/instances/batch",
        {"instances": [{"id": "a", "params": 1}, {"id": "b", "params": 2}, {"id": "c"}, {"id": "a", "params": 3}]},
    )

    assert created == {
        "instances": [{"id": "a", "details": {"status": "active"}}, {"id": "c", "details": {"status": "active"}}]
    }
    assert (await api.until("echo", "a", "complete"))["details"]["output"] == 1


async def test_a_batch_may_be_empty_and_has_at_most_100(api: Api) -> None:
    assert await api.post("/nothing/instances/batch", {"instances": []}) == {"instances": []}
    most = [{"id": f"n{n}"} for n in range(101)]

    response = await api.send("POST", "/nothing/instances/batch", json={"instances": most})

    assert (response.status_code, response.json()["code"]) == (400, "VALIDATION_ERROR")
    assert response.json()["issues"][0]["path"] == ["instances"]
    assert len((await api.post("/nothing/instances/batch", {"instances": most[:100]}))["instances"]) == 100


@pytest.mark.above_the_store
async def test_one_invalid_entry_starts_nothing_and_is_reported_with_its_index(api: Api) -> None:
    good = {"id": "good", "params": {"id": "o", "total": 1}}

    response = await api.send("POST", "/order/instances/batch", json={"instances": [good, {"id": "x", "params": {}}]})
    assert (response.status_code, response.json()["code"]) == (400, "WORKFLOW_PARAMS_INVALID")
    assert response.json()["issues"][0]["path"] == [1, "id"]

    bad = {"instances": [good, {"id": "-"}]}
    assert await api.refused("POST", "/order/instances/batch", json=bad) == (400, "INVALID_INSTANCE_ID")
    no_id = {"instances": [good, {"params": 1}]}
    assert await api.refused("POST", "/order/instances/batch", json=no_id) == (400, "VALIDATION_ERROR")
    assert await api.count("order") == 0


async def test_concurrent_batches_create_each_id_once(api: Api) -> None:
    batch = {"instances": [{"id": f"n{n}"} for n in range(50)]}

    responses = await asyncio.gather(*(api.post("/nothing/instances/batch", batch) for _ in range(4)))

    created = [instance["id"] for response in responses for instance in response["instances"]]
    assert sorted(created) == sorted(f"n{n}" for n in range(50))
