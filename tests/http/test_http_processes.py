"""Responses about related runs: every field, and when it is absent."""

from __future__ import annotations

from typing import Any

import pytest
from http_api import Api

from holdfast.testing import Harness

EVERY_STORE = True

OPTIONAL_FIELDS = {"attempt", "summary", "memo", "search", "parent", "children", "links", "monitors"}


@pytest.fixture
async def related(h: Harness, virtual: Api) -> Api:
    """A boss with a child (helper) and a monitored run (friend); all of them wait."""
    await virtual.create("waiter", id="friend")
    await virtual.create("boss", "waiter/friend", id="b")
    await h.run_until_idle()
    return virtual


async def meta(api: Api, workflow: str, id: str) -> dict[str, Any]:
    fields: dict[str, Any] = (await api.get(f"/{workflow}/instances/{id}"))["meta"]
    return fields


async def optional_fields(api: Api, workflow: str, id: str) -> dict[str, Any]:
    return {name: value for name, value in (await meta(api, workflow, id)).items() if name in OPTIONAL_FIELDS}


# --- meta


async def test_a_run_without_relations_and_attributes_has_none_of_the_fields(h: Harness, virtual: Api) -> None:
    await virtual.create("waiter", id="w")
    await virtual.create("tagged", {}, id="t")
    await h.run_until_idle()

    assert await optional_fields(virtual, "waiter", "w") == await optional_fields(virtual, "tagged", "t") == {}


async def test_runs_show_their_children_parents_links_and_monitors(related: Api) -> None:
    boss = await optional_fields(related, "boss", "b")
    assert boss | {"monitors": sorted(boss["monitors"])} == {
        "children": [{"pid": "helper/h", "status": "waiting"}],
        "links": ["helper/h"],
        "monitors": ["helper/h", "waiter/friend"],
    }
    assert await optional_fields(related, "helper", "h") == {"parent": "boss/b", "links": ["boss/b"]}
    assert await optional_fields(related, "waiter", "friend") == {}
    assert "linked to boss/b" in (await meta(related, "helper", "h"))["why"]


async def test_children_show_their_status_and_ended_relations_are_absent(h: Harness, related: Api) -> None:
    await related.post("/boss/instances/b/events", {"type": "go"})
    await h.run_until_idle()

    instance = await related.get("/boss/instances/b")
    assert instance["details"]["output"] == ["yes, boss", "bye"]
    assert await optional_fields(related, "boss", "b") == {"children": [{"pid": "helper/h", "status": "complete"}]}
    assert await optional_fields(related, "helper", "h") == {"parent": "boss/b"}
    assert (await related.get("/waiter/instances/friend"))["details"]["error"]["message"] == "enough"


async def test_a_run_that_has_ended_is_no_longer_monitored(h: Harness, related: Api) -> None:
    await related.post("/waiter/instances/friend/terminate")
    await h.run_until_idle()

    assert (await optional_fields(related, "boss", "b"))["monitors"] == ["helper/h"]


async def test_memo_search_and_summary_of_a_start_are_shown(h: Harness, virtual: Api) -> None:
    memo = {"note": "handle with care", "nested": {"a": [1, None]}}
    await h.app.start("waiter", id="w", memo=memo, search={"n": 1, "ok": True, "tags": ["a", "b"]}, summary="a waiter")

    assert await optional_fields(virtual, "waiter", "w") == {
        "memo": memo,
        "search": {"n": 1, "ok": True, "tags": ["a", "b"]},
        "summary": "a waiter",
    }


async def test_an_empty_summary_is_shown(h: Harness, virtual: Api) -> None:
    await h.app.start("waiter", id="w", memo={}, search={}, summary="")

    assert await optional_fields(virtual, "waiter", "w") == {"summary": ""}


async def test_the_attempt_is_shown_from_the_second_on(h: Harness, virtual: Api) -> None:
    await virtual.create("second", id="s")
    assert await optional_fields(virtual, "second", "s") == {}
    await h.run_until_idle()

    fields = await meta(virtual, "second", "s")
    assert (fields["attempt"], fields["runNumber"]) == (2, 1)


# --- history


async def test_operations_on_other_runs_are_in_the_history(h: Harness, related: Api) -> None:
    child, *_ = (await related.get("/boss/instances/b/history"))["steps"]
    assert (child["type"], child["status"], child["result"]) == ("child", "waiting", None)
    await related.post("/boss/instances/b/events", {"type": "go"})
    await h.run_until_idle()

    steps = (await related.get("/boss/instances/b/history"))["steps"]
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
    [reply] = (await related.get("/helper/instances/h/history"))["steps"]
    assert (reply["type"], reply["name"], reply["status"]) == ("reply", "question from boss/b", "completed")
    assert all(step["stepKey"] and step["attempts"] == 0 for step in steps if step["type"] != "waitForEvent")


async def test_a_child_that_fails_is_a_step_with_an_error(h: Harness, related: Api) -> None:
    await related.post("/helper/instances/h/terminate")
    await h.run_until_idle()

    child, *_ = (await related.get("/boss/instances/b/history"))["steps"]
    assert (child["type"], child["status"]) == ("child", "errored")
    assert child["error"]["name"] == "Terminated"
    assert (await related.get("/boss/instances/b"))["details"]["error"]["name"] == "LinkDownError"


async def test_an_event_has_its_sender_unless_it_came_from_outside(h: Harness, related: Api) -> None:
    await related.post("/waiter/instances/friend/events", {"type": "outside"})

    inside, outside = (await related.get("/waiter/instances/friend/history"))["events"]
    assert (inside["type"], inside["payload"], inside["sender"]) == ("hello", {"from": "boss"}, "boss/b")
    assert outside["type"] == "outside"
    assert "sender" not in outside
    [question] = (await related.get("/helper/instances/h/history"))["events"]
    assert (question["sender"], question["consumedByStepKey"]) == ("boss/b", "listen question")


async def test_a_cancellation_is_an_event_of_the_engine(h: Harness, related: Api) -> None:
    await related.post("/waiter/instances/friend/cancel", {"reason": "from outside"})

    events = (await related.get("/waiter/instances/friend/history"))["events"]
    assert events[-1]["type"] == "@cancel"
    assert events[-1]["payload"]["reason"] == "from outside"
    assert "sender" not in events[-1]


async def test_an_event_type_of_the_engine_cannot_be_sent_over_http(related: Api) -> None:
    for type_ in ("@cancel", "@exit"):
        body = {"type": type_, "payload": {"reason": "x", "deadlineMs": 0}}
        assert await related.refused("POST", "/waiter/instances/friend/events", json=body) == (
            400,
            "INVALID_EVENT_TYPE",
        )
    assert await related.status("waiter", "friend") == "waiting"
