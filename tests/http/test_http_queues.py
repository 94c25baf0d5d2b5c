"""Queues over HTTP: paused, resumed and moved; each change is audited."""

from __future__ import annotations

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
