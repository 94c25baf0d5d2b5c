"""Limits over HTTP: read and changed; a change is audited."""

from __future__ import annotations

from http_api import Api

from holdfast.store.protocol import DeclareLimits, LimitValues, Pace
from holdfast.testing import Harness

BASE = "/_limits"


async def test_a_limit_is_read_and_changed(h: Harness, virtual: Api) -> None:
    declared = {"bank": LimitValues(5, Pace(10, 1000, 20))}
    await h._store.limits(DeclareLimits(declared))

    [limit] = (await virtual.get(BASE))["limits"]
    assert (limit["name"], limit["concurrency"], limit["changed"]) == ("bank", 5, False)
    assert limit["rate"] == {"count": 10, "perMs": 1000, "burst": 20}
    changes = {"concurrency": 7, "rate": None, "fair": True, "weights": {"acme": 2}, "reason": "more quota"}
    changed = (await virtual.send("PUT", f"{BASE}/bank", json=changes)).json()
    assert (changed["concurrency"], changed["rate"], changed["fair"]) == (7, None, True)
    assert (changed["weights"], changed["changed"]) == ({"acme": 2.0}, True)
    [record] = (await h.app.audit()).items
    assert (record.action, record.target, record.reason) == ("limit_change", "limit bank", "more quota")


async def test_a_wrong_change_of_a_limit_is_refused(virtual: Api) -> None:
    unknown = await virtual.send("PUT", f"{BASE}/none", json={"concurrency": 1})
    wrong = await virtual.send("PUT", f"{BASE}/none", json={"concurrency": -1})

    assert (unknown.status_code, unknown.json()["code"]) == (404, "LIMIT_NOT_FOUND")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "VALIDATION_ERROR")
