"""Limits over HTTP: read and changed; a change is audited."""

from __future__ import annotations

from dataclasses import dataclass

from http_api import Api, client_of

from holdfast import Context, Holdfast, Rate
from holdfast.http.response_bodies import date
from holdfast.store.protocol import DeclareLimits, LimitValues, Pace
from holdfast.testing import Harness

BASE = "/_limits"


@dataclass
class Customer:
    name: str


async def test_a_limit_is_read_and_changed(h: Harness, virtual: Api) -> None:
    declared = {"bank": LimitValues(5, Pace(10, 1000, 20))}
    await h._store.limits(DeclareLimits(declared))

    [limit] = (await virtual.get(BASE))["limits"]
    assert (limit["name"], limit["concurrency"], limit["changed"]) == ("bank", 5, False)
    assert limit["rate"] == {"count": 10, "perMs": 1000, "burst": 20, "used": 0}
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


async def test_the_keys_of_a_limit_show_what_they_use_and_what_waits() -> None:
    app = Holdfast("sqlite://")
    tenants = app.limit("tenants", concurrency=1, rate=Rate(10, "1 hour"), key="name")

    @app.workflow(limits=[tenants], hold="until_end")
    async def tenant(ctx: Context, customer: Customer) -> None:
        await ctx.wait_for_event("go", type="go", timeout="1 day")

    async with Harness(app, seed=3) as h, client_of(app.asgi()) as http:
        virtual = Api(http)
        await h.start("tenant", Customer("acme"), id="a")
        await h.start("tenant", Customer("globex"), id="g0")
        await h.run_until_idle()
        await h.start("tenant", Customer("globex"), id="g1")
        await h.run_until_idle()
        since = date(h.now())
        await h.advance("1 minute")
        await h.start("tenant", Customer("globex"), id="g2")
        await h.run_until_idle()

        both = await virtual.get(f"{BASE}/tenants/keys")
        one = await virtual.get(f"{BASE}/tenants/keys", count=1)

        assert both == {
            "keys": [
                {"key": "globex", "used": 1, "waiting": 2, "oldestWaiting": since},
                {"key": "acme", "used": 1, "waiting": 0, "oldestWaiting": None},
            ],
            "total": 2,
        }
        assert (one["keys"], one["total"]) == (both["keys"][:1], 2)
        [limit] = (await virtual.get(BASE))["limits"]
        assert (limit["used"], limit["waiting"], limit["rate"]["used"]) == (2, 2, 1)
        assert limit["oldestWaiting"] == since
        assert await virtual.refused("GET", f"{BASE}/none/keys") == (404, "LIMIT_NOT_FOUND")
        assert await virtual.refused("GET", f"{BASE}/tenants/keys?count=101") == (400, "VALIDATION_ERROR")
