"""Queues over HTTP: paused, resumed and moved; each change is audited."""

from __future__ import annotations

import pytest
from http_api import Api

from holdfast.testing import Harness


async def test_a_queue_is_paused_resumed_and_moved(h: Harness, virtual: Api) -> None:
    paused = (await virtual.send("POST", "/_queues/bulk/pause", json={"reason": "the bank is down"})).json()
    await virtual.send("POST", "/waiter/instances", json={"id": "q-1", "queue": "bulk"})
    [bulk] = [queue for queue in (await virtual.get("/_queues"))["queues"] if queue["name"] == "bulk"]
    moved = (await virtual.send("POST", "/_queues/bulk/move", json={"to": "slow"})).json()
    resumed = (await virtual.send("POST", "/_queues/bulk/resume")).json()

    assert (paused, resumed) == ({"name": "bulk", "paused": True}, {"name": "bulk", "paused": False})
    assert (bulk["paused"], bulk["due"]) == (True, 1)
    assert moved == {"source": "bulk", "target": "slow", "moved": 1}
    records = [(record.action, record.target, record.outcome) for record in (await h.app.audit()).items]
    assert records == [
        ("queue_resume", "queue bulk", "done"),
        ("queue_move", "queue bulk", "1 to slow"),
        ("queue_pause", "queue bulk", "done"),
    ]


async def test_a_move_without_a_target_is_refused(virtual: Api) -> None:
    refused = await virtual.send("POST", "/_queues/bulk/move", json={})

    assert (refused.status_code, refused.json()["code"]) == (400, "VALIDATION_ERROR")


@pytest.mark.above_the_store
async def test_a_worker_is_drained_and_resumed(api: Api) -> None:
    [worker] = await api.workers()
    path = f"/_workers/{worker['id']}"

    drained = await api.post(f"{path}/drain", {"reason": "the host is replaced"})
    [during] = await api.workers()
    resumed = await api.post(f"{path}/resume")
    unknown = await api.send("POST", "/_workers/nobody/drain")

    assert drained == {"id": worker["id"], "draining": True}
    assert resumed == {"id": worker["id"], "draining": False}
    assert (worker["draining"], during["draining"], during["held"]) == (False, True, 0)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "WORKER_NOT_FOUND")
    records = (await api.get("/_audit"))["records"]
    assert [record["action"] for record in records] == ["worker_resume", "worker_drain"]
