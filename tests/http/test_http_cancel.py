"""Cancel: the body of the request, and the effect on the run."""

from __future__ import annotations

from typing import Any

import pytest
from http_api import Api

from holdfast.core.durations import MAX_MS
from holdfast.testing import Harness

EVERY_STORE = True


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", None),
        (b"{}", None),
        (b'{"reason": "closing time"}', "closing time"),
        (b'{"reason": ""}', ""),
        (b'{"reason": "a\\u0000b \\ud800 \xc3\xa9"}', "a\0b \ud800 é"),
        (b'{"deadlineMs": 60000}', None),
        (b'{"deadlineMs": 60000.0, "reason": "late"}', "late"),
        (b'{"deadlineMs": %d}' % MAX_MS, None),
    ],
)
async def test_the_reason_reaches_the_code_which_may_clean_up(
    h: Harness, virtual: Api, body: bytes, reason: str | None
) -> None:
    await virtual.create("tidy", id="t")
    await h.advance("1 second")

    response = await virtual.send("POST", "/tidy/instances/t/cancel", content=body)
    await h.run_until_idle()

    assert (response.status_code, response.json()) == (200, {"ok": True})
    details = (await virtual.get("/tidy/instances/t"))["details"]
    assert (details["status"], details["error"]["name"]) == ("cancelled", "CancelledError")
    assert details["error"]["message"] == (reason or "no reason given")
    steps = (await virtual.get("/tidy/instances/t/history"))["steps"]
    assert [(step["name"], step["status"]) for step in steps] == [("go", "errored"), ("tidy up", "completed")]
    assert steps[1]["result"] == [reason]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "body",
    [
        b"null", b"[]", b'"why"', b"5", b"{", b"{}x", b'{"reason": null}', b'{"reason": 5}', b'{"reason": ["x"]}',
        b'{"reason": "a", "reason": "b"}', b'{"reasons": "x"}', b'{"deadline": 5}', b'{"deadlineMs": null}',
        b'{"deadlineMs": -1}', b'{"deadlineMs": 1.5}', b'{"deadlineMs": "5"}', b'{"deadlineMs": true}',
        b'{"deadlineMs": NaN}', b'{"deadlineMs": 1e400}', b'{"deadlineMs": %d}' % (MAX_MS + 1),
        b'{"reason": "%s"}' % (b"x" * 2001),
    ],
)  # fmt: skip
async def test_an_invalid_body_is_refused_and_nothing_is_cancelled(h: Harness, virtual: Api, body: bytes) -> None:
    await virtual.create("tidy", id="t")
    await h.run_until_idle()

    refused = await virtual.refused("POST", "/tidy/instances/t/cancel", content=body)
    await h.run_until_idle()

    assert refused == (400, "VALIDATION_ERROR")
    assert await virtual.status("tidy", "t") == "waiting"
    assert (await virtual.get("/tidy/instances/t/history"))["events"] == []


@pytest.mark.above_the_store
async def test_a_cancel_body_of_another_media_type_or_size_is_refused(api: Api) -> None:
    await api.create("waiter", id="w")
    path, form = "/waiter/instances/w/cancel", {"content-type": "text/plain"}

    assert await api.refused("POST", path, content=b"{}", headers=form) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert await api.refused("POST", path, content=b" " * 2**22) == (413, "PAYLOAD_TOO_LARGE")
    assert await api.status("waiter", "w") != "cancelled"


async def test_the_longest_reason_is_kept(h: Harness, virtual: Api) -> None:
    await virtual.create("cancel_event", id="t")

    await virtual.post("/cancel_event/instances/t/cancel", {"reason": "é" * 2000})
    await h.run_until_idle()

    assert (await virtual.get("/cancel_event/instances/t"))["details"]["output"] == ["é" * 2000, None]


async def test_the_code_receives_the_deadline(h: Harness, virtual: Api) -> None:
    await virtual.create("cancel_event", id="t")
    await h.run_until_idle()

    await virtual.post("/cancel_event/instances/t/cancel", {"reason": "hurry", "deadlineMs": 5000})
    await h.run_until_idle()

    instance = await virtual.get("/cancel_event/instances/t")
    assert instance["details"] == {"status": "complete", "output": ["hurry", "2030-01-01T00:00:05+00:00"]}


async def test_a_run_is_terminated_at_the_deadline_of_its_cancellation(h: Harness, virtual: Api) -> None:
    await virtual.create("stubborn", id="s")
    await h.run_until_idle()
    await virtual.post("/stubborn/instances/s/cancel", {"reason": "closing time", "deadlineMs": 60_000})

    await h.advance("59 seconds")
    assert await virtual.status("stubborn", "s") == "waiting"
    await h.advance("1 second")

    assert (await virtual.get("/stubborn/instances/s"))["details"] == {"status": "terminated"}


async def test_a_deadline_of_0_terminates_the_run_at_once(h: Harness, virtual: Api) -> None:
    await virtual.create("stubborn", id="s")
    await h.run_until_idle()

    await virtual.post("/stubborn/instances/s/cancel", {"deadlineMs": 0})
    await h.run_until_idle()

    assert await virtual.status("stubborn", "s") == "terminated"


async def test_without_a_deadline_cleanup_may_take_any_time(h: Harness, virtual: Api) -> None:
    await virtual.create("stubborn", id="s")
    await h.run_until_idle()
    await virtual.post("/stubborn/instances/s/cancel")

    await h.advance("23 hours")
    assert await virtual.status("stubborn", "s") == "waiting"
    await h.advance("1 hour")

    assert await virtual.status("stubborn", "s") == "cancelled"


async def test_a_run_that_has_not_begun_is_cancelled_without_running(h: Harness, virtual: Api) -> None:
    await virtual.create("tidy", id="t")

    await virtual.post("/tidy/instances/t/cancel", {"reason": "too late"})
    await h.run_until_idle()

    assert await virtual.status("tidy", "t") == "cancelled"
    assert (await virtual.get("/tidy/instances/t/history"))["steps"] == []


@pytest.mark.parametrize("body", [None, {"reason": "x", "deadlineMs": 1}])
async def test_a_run_that_has_ended_is_not_cancelled(api: Api, body: Any) -> None:
    await api.create("echo", 7, id="e")
    await api.until("echo", "e", "complete")

    assert await api.refused("POST", "/echo/instances/e/cancel", json=body) == (409, "INSTANCE_TERMINAL")
    assert (await api.get("/echo/instances/e"))["details"] == {"status": "complete", "output": 7}


async def test_an_instance_that_does_not_exist_cannot_be_cancelled(api: Api) -> None:
    body = {"reason": "x"}

    assert await api.refused("POST", "/waiter/instances/none/cancel", json=body) == (404, "INSTANCE_NOT_FOUND")
    assert await api.refused("POST", "/unknown/instances/none/cancel", json=body) == (404, "WORKFLOW_NOT_FOUND")
    assert await api.refused("POST", "/waiter/instances/a.b/cancel", json=body) == (400, "INVALID_INSTANCE_ID")


async def test_a_second_cancel_during_cleanup_changes_nothing(h: Harness, virtual: Api) -> None:
    await virtual.create("stubborn", id="s")
    await h.run_until_idle()

    for reason in ("first", "second"):
        await virtual.post("/stubborn/instances/s/cancel", {"reason": reason})
        await h.run_until_idle()
    await h.advance("1 day")

    details = (await virtual.get("/stubborn/instances/s"))["details"]
    assert (details["status"], details["error"]["message"]) == ("cancelled", "first")


async def test_a_cancelled_run_can_be_restarted_and_listed(api: Api) -> None:
    await api.create("tidy", id="t")
    await api.until("tidy", "t", "waiting")
    await api.post("/tidy/instances/t/cancel")
    await api.until("tidy", "t", "cancelled")
    assert [instance["id"] for instance in (await api.get("/tidy/instances", status="cancelled"))["instances"]] == ["t"]

    await api.post("/tidy/instances/t/restart")

    assert (await api.until("tidy", "t", "waiting"))["meta"]["runNumber"] == 1
