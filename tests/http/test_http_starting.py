"""Creating instances: one, and many."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from http_api import Api

EVERY_STORE = True


async def test_a_new_instance_is_answered_with_its_id_and_status(api: Api) -> None:
    made = await api.post("/echo/instances", {"id": "e-1", "params": {"a": 1}})

    assert made == {"id": "e-1", "details": {"status": "active"}}
    assert (await api.until("echo", "e-1", "complete"))["details"] == {"status": "complete", "output": {"a": 1}}


async def test_an_id_is_made_where_none_is_given(api: Api) -> None:
    first, second = await api.post("/nothing/instances", {}), await api.post("/nothing/instances", {})

    assert first["id"] != second["id"]
    assert await api.until("nothing", first["id"], "complete")


@pytest.mark.parametrize("end", ["live", "complete", "terminated"])
async def test_an_id_that_exists_is_refused_whatever_became_of_it(api: Api, end: str) -> None:
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


async def test_five_creates_of_one_id_at_once_make_one_instance(api: Api) -> None:
    for round_ in range(10):
        body = {"id": f"only-{round_}", "params": round_}
        answers = await asyncio.gather(*(api.send("POST", "/echo/instances", json=body) for _ in range(5)))
        assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 4}
        await api.until("echo", f"only-{round_}", "complete")
    assert await api.count("echo") == 10


async def test_the_same_id_in_two_workflows_is_two_instances(api: Api) -> None:
    await api.create("nothing", id="same")
    await api.create("waiter", id="same")

    assert await api.status("waiter", "same") in ("active", "waiting")


@pytest.mark.above_the_store
@pytest.mark.parametrize("id", ["", "-a", "a b", "a.b", "ä", "a/b", "x" * 101, "a\n", "a\0"])
async def test_an_id_out_of_the_pattern_is_refused(api: Api, id: str) -> None:
    assert await api.refused("POST", "/nothing/instances", json={"id": id}) == (400, "INVALID_INSTANCE_ID")
    assert await api.count("nothing") == 0


async def test_the_longest_id_is_taken(api: Api) -> None:
    assert await api.create("nothing", id="x" * 100) == "x" * 100


async def test_what_does_not_fit_the_annotation_is_named_field_by_field(api: Api) -> None:
    answer = await api.send("POST", "/order/instances", json={"params": {"id": "o", "total": "many"}})

    assert (answer.status_code, answer.json()["code"]) == (400, "WORKFLOW_PARAMS_INVALID")
    [issue] = answer.json()["issues"]
    assert issue["path"] == ["total"]
    assert "integer" in issue["message"]
    assert await api.count("order") == 0


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
async def test_input_that_does_not_fit_starts_nothing(api: Api, workflow: str, body: Any) -> None:
    assert await api.refused("POST", f"/{workflow}/instances", json=body) == (400, "WORKFLOW_PARAMS_INVALID")
    assert await api.count(workflow) == 0


async def test_an_input_with_a_default_may_be_left_out(api: Api) -> None:
    made = await api.create("failing")

    found = await api.until("failing", made, "errored")
    assert found["meta"]["params"] is None
    assert found["details"]["status"] == "errored"
    assert (found["details"]["error"]["name"], found["details"]["error"]["message"]) == ("CardDeclined", "no")


async def test_a_workflow_that_is_not_registered_is_not_found(api: Api) -> None:
    for path in ("/os.system/instances", "/os.system/instances/batch"):
        assert await api.refused("POST", path, json={}) == (404, "WORKFLOW_NOT_FOUND")


# --- batches


async def test_a_batch_starts_all_that_are_new(api: Api) -> None:
    await api.create("echo", 0, id="b")

    made = await api.post(
        "/echo/instances/batch",
        {"instances": [{"id": "a", "params": 1}, {"id": "b", "params": 2}, {"id": "c"}, {"id": "a", "params": 3}]},
    )

    assert made == {
        "instances": [{"id": "a", "details": {"status": "active"}}, {"id": "c", "details": {"status": "active"}}]
    }
    assert (await api.until("echo", "a", "complete"))["details"]["output"] == 1


async def test_a_batch_may_be_empty_and_has_at_most_100(api: Api) -> None:
    assert await api.post("/nothing/instances/batch", {"instances": []}) == {"instances": []}
    most = [{"id": f"n{n}"} for n in range(101)]

    answer = await api.send("POST", "/nothing/instances/batch", json={"instances": most})

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["issues"][0]["path"] == ["instances"]
    assert len((await api.post("/nothing/instances/batch", {"instances": most[:100]}))["instances"]) == 100


@pytest.mark.above_the_store
async def test_one_wrong_entry_starts_nothing_and_is_named_by_its_place(api: Api) -> None:
    good = {"id": "good", "params": {"id": "o", "total": 1}}

    answer = await api.send("POST", "/order/instances/batch", json={"instances": [good, {"id": "x", "params": {}}]})
    assert (answer.status_code, answer.json()["code"]) == (400, "WORKFLOW_PARAMS_INVALID")
    assert answer.json()["issues"][0]["path"] == [1, "id"]

    bad = {"instances": [good, {"id": "-"}]}
    assert await api.refused("POST", "/order/instances/batch", json=bad) == (400, "INVALID_INSTANCE_ID")
    no_id = {"instances": [good, {"params": 1}]}
    assert await api.refused("POST", "/order/instances/batch", json=no_id) == (400, "VALIDATION_ERROR")
    assert await api.count("order") == 0


async def test_concurrent_batches_share_out_their_ids(api: Api) -> None:
    batch = {"instances": [{"id": f"n{n}"} for n in range(50)]}

    answers = await asyncio.gather(*(api.post("/nothing/instances/batch", batch) for _ in range(4)))

    made = [one["id"] for answer in answers for one in answer["instances"]]
    assert sorted(made) == sorted(f"n{n}" for n in range(50))
