"""What is answered about runs that have to do with each other: every field, and when it is absent."""

from __future__ import annotations

from typing import Any

import pytest
from http_api import Api

from holdfast.testing import Harness

EVERY_STORE = True

DEALINGS = {"attempt", "summary", "memo", "search", "parent", "children", "links", "monitors"}


@pytest.fixture
async def company(h: Harness, virtual: Api) -> Api:
    """A boss with a helper and a friend, who all wait."""
    await virtual.create("waiter", id="friend")
    await virtual.create("boss", "waiter/friend", id="b")
    await h.run_until_idle()
    return virtual


async def meta(api: Api, workflow: str, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"/{workflow}/instances/{id}"))["meta"]
    return found


async def dealings(api: Api, workflow: str, id: str) -> dict[str, Any]:
    return {name: value for name, value in (await meta(api, workflow, id)).items() if name in DEALINGS}


# --- meta


async def test_a_run_that_deals_with_nobody_has_none_of_the_fields(h: Harness, virtual: Api) -> None:
    await virtual.create("waiter", id="w")
    await virtual.create("tagged", {}, id="t")
    await h.run_until_idle()

    assert await dealings(virtual, "waiter", "w") == await dealings(virtual, "tagged", "t") == {}


async def test_runs_show_whom_they_deal_with(company: Api) -> None:
    boss = await dealings(company, "boss", "b")
    assert boss | {"monitors": sorted(boss["monitors"])} == {
        "children": [{"pid": "helper/h", "status": "waiting"}],
        "links": ["helper/h"],
        "monitors": ["helper/h", "waiter/friend"],
    }
    assert await dealings(company, "helper", "h") == {"parent": "boss/b", "links": ["boss/b"]}
    assert await dealings(company, "waiter", "friend") == {}
    assert "linked to boss/b" in (await meta(company, "helper", "h"))["why"]


async def test_children_show_their_own_status_and_what_is_over_is_gone(h: Harness, company: Api) -> None:
    await company.post("/boss/instances/b/events", {"type": "go"})
    await h.run_until_idle()

    found = await company.get("/boss/instances/b")
    assert found["details"]["output"] == ["yes, boss", "bye"]
    assert await dealings(company, "boss", "b") == {"children": [{"pid": "helper/h", "status": "complete"}]}
    assert await dealings(company, "helper", "h") == {"parent": "boss/b"}
    assert (await company.get("/waiter/instances/friend"))["details"]["error"]["message"] == "enough"


async def test_who_has_ended_is_watched_no_more(h: Harness, company: Api) -> None:
    await company.post("/waiter/instances/friend/terminate")
    await h.run_until_idle()

    assert (await dealings(company, "boss", "b"))["monitors"] == ["helper/h"]


async def test_what_a_start_says_of_a_run_is_shown(h: Harness, virtual: Api) -> None:
    memo = {"note": "handle with care", "nested": {"a": [1, None]}}
    await h.app.start("waiter", id="w", memo=memo, search={"n": 1, "ok": True, "tags": ["a", "b"]}, summary="a waiter")

    assert await dealings(virtual, "waiter", "w") == {
        "memo": memo,
        "search": {"n": 1, "ok": True, "tags": ["a", "b"]},
        "summary": "a waiter",
    }


async def test_a_summary_of_nothing_is_there_because_it_was_given(h: Harness, virtual: Api) -> None:
    await h.app.start("waiter", id="w", memo={}, search={}, summary="")

    assert await dealings(virtual, "waiter", "w") == {"summary": ""}


async def test_the_attempt_is_there_from_the_second_on(h: Harness, virtual: Api) -> None:
    await virtual.create("second", id="s")
    assert await dealings(virtual, "second", "s") == {}
    await h.run_until_idle()

    found = await meta(virtual, "second", "s")
    assert (found["attempt"], found["runNumber"]) == (2, 1)


# --- history


async def test_what_a_run_did_to_others_is_in_its_history(h: Harness, company: Api) -> None:
    child, *_ = (await company.get("/boss/instances/b/history"))["steps"]
    assert (child["type"], child["status"], child["result"]) == ("child", "waiting", None)
    await company.post("/boss/instances/b/events", {"type": "go"})
    await h.run_until_idle()

    steps = (await company.get("/boss/instances/b/history"))["steps"]
    assert {(step["type"], step["name"], step["status"]) for step in steps} == {
        ("child", "helper/h", "completed"),
        ("link", "helper/h", "completed"),
        ("monitor", "waiter/friend", "completed"),
        ("send", "hello to waiter/friend", "completed"),
        ("ask", "question of helper/h", "completed"),
        ("waitForEvent", "go", "completed"),
        ("send", "leave to helper/h", "completed"),
        ("unmonitor", "waiter/friend", "completed"),
        ("cancel", "waiter/friend", "completed"),
    }
    results = {step["type"]: step["result"] for step in steps if step["type"] in ("child", "ask")}
    assert results == {"child": "bye", "ask": "yes, boss"}
    [reply] = (await company.get("/helper/instances/h/history"))["steps"]
    assert (reply["type"], reply["name"], reply["status"]) == ("reply", "question from boss/b", "completed")
    assert all(step["stepKey"] and step["attempts"] == 0 for step in steps if step["type"] != "waitForEvent")


async def test_a_child_that_fails_is_a_step_with_an_error(h: Harness, company: Api) -> None:
    await company.post("/helper/instances/h/terminate")
    await h.run_until_idle()

    child, *_ = (await company.get("/boss/instances/b/history"))["steps"]
    assert (child["type"], child["status"]) == ("child", "errored")
    assert child["error"]["name"] == "Terminated"
    assert (await company.get("/boss/instances/b"))["details"]["error"]["name"] == "LinkDownError"


async def test_an_event_has_its_sender_unless_it_came_from_outside(h: Harness, company: Api) -> None:
    await company.post("/waiter/instances/friend/events", {"type": "outside"})

    inside, outside = (await company.get("/waiter/instances/friend/history"))["events"]
    assert (inside["type"], inside["payload"], inside["sender"]) == ("hello", {"from": "boss"}, "boss/b")
    assert outside["type"] == "outside"
    assert "sender" not in outside
    [question] = (await company.get("/helper/instances/h/history"))["events"]
    assert (question["sender"], question["consumedByStepKey"]) == ("boss/b", "listen question")


async def test_a_cancellation_is_an_event_of_the_engine(h: Harness, company: Api) -> None:
    await company.post("/waiter/instances/friend/cancel", {"reason": "from outside"})

    events = (await company.get("/waiter/instances/friend/history"))["events"]
    assert events[-1]["type"] == "@cancel"
    assert events[-1]["payload"]["reason"] == "from outside"
    assert "sender" not in events[-1]


async def test_nobody_outside_can_send_an_event_of_the_engine(company: Api) -> None:
    for type_ in ("@cancel", "@exit"):
        body = {"type": type_, "payload": {"reason": "x", "deadlineMs": 0}}
        assert await company.refused("POST", "/waiter/instances/friend/events", json=body) == (
            400,
            "INVALID_EVENT_TYPE",
        )
    assert await company.status("waiter", "friend") == "waiting"
