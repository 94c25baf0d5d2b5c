"""Two tenants behind the hook of docs/routes.md: neither can see, change or infer anything about the other.

The routes are read from the application, so that a new route is tested too.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import Api, client_of
from http_shop import make_shop

from holdfast import Authorize, AuthRequest, Denied, Filter, Holdfast, RunTerminatedError
from holdfast.http.gate import GatedRoute
from holdfast.http.spec import Reach, Spec

EVERY_STORE = True

PAGE = Path(__file__).parents[2] / "docs" / "routes.md"
OF_EACH_KIND = ("waiter", "pipeline", "order.process")
BODIES: dict[str, Any] = {
    "createInstances": {"instances": [{"id": "acme-new"}]},
    "createInstance": {"id": "acme-new"},
    "sendEvent": {"type": "go", "id": "e"},
    "forkInstance": {"before": "nothing", "id": "acme-fork"},
    "resolveStep": {"stepKey": "nothing", "result": 1},
    "replyToAsk": {"eventId": "0:1"},
    "moveInstance": {"version": "1"},
    "moveQueue": {"to": "other"},
    "backfillSchedule": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
    "createSchedule": {"name": "s", "workflow": "waiter", "cron": "0 0 * * *"},
}


def page_policy() -> tuple[Authorize, dict[str, dict[str, str]]]:
    """The policy of the page, and the request headers of each tenant."""
    section = PAGE.read_text().split("A hook is an async function.")[1]
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names["tenants"], {tenant: {"Authorization": token} for token, tenant in names["TENANTS"].items()}


async def policy_by_attribute(request: AuthRequest) -> Filter:
    return Filter(search={"tenant": request.headers["x-tenant"]})


async def creation_by_attribute(request: AuthRequest) -> None:
    if any(not (instance.id or "").startswith(request.headers["x-tenant"]) for instance in request.instances):
        raise Denied(403, "not yours")


def policies() -> dict[str, tuple[Authorize, dict[str, dict[str, str]]]]:
    by_attribute = Authorize(
        read=policy_by_attribute, manage=policy_by_attribute, send_event=policy_by_attribute, tick=policy_by_attribute,
        create=creation_by_attribute, debug=policy_by_attribute,
    )  # fmt: skip
    return {
        "id prefix": page_policy(),
        "attribute": (by_attribute, {name: {"X-Tenant": name} for name in ("acme", "globex")}),
    }


_WITH_BODY = ("POST", "PATCH", "PUT")


@dataclass(frozen=True)
class TwoTenants:
    """A server with paused instances of two tenants, and the request headers of each tenant."""

    app: Holdfast
    api: Api
    headers: dict[str, dict[str, str]]
    routes: Sequence[Spec]

    async def send(self, tenant: str, spec: Spec, path: str, body: Any = None) -> httpx.Response:
        options = {"json": body if body is not None else BODIES.get(spec.name, {})} if spec.method in _WITH_BODY else {}
        return await self.api.send(spec.method, path, headers=self.headers[tenant], **options)

    async def state_of(self, tenant: str) -> list[Any]:
        state = []
        for workflow in OF_EACH_KIND:
            for instance in (await self.app.list(workflow, id_prefix=f"{tenant}-", limit=100)).items:
                run = await self.app.get(workflow, instance.id)
                state += [await run.describe(), await run.history()]
        return state


@pytest.fixture(params=["id prefix", "attribute"])
async def tenants(request: pytest.FixtureRequest, database_options: dict[str, Any]) -> AsyncIterator[TwoTenants]:
    authorize, headers = policies()[request.param]
    app, _ = make_shop(**database_options, authorize=authorize)
    async with app.connect():
        for tenant in ("acme", "globex"):
            for n in range(2):
                for workflow in OF_EACH_KIND:
                    search = {"tenant": tenant, "secret": f"{tenant}s"}
                    await (await app.start(workflow, id=f"{tenant}-{n}", search=search)).pause()
        asgi = app.asgi(tick=True, debug=True)
        routes = {route.spec for route in asgi.routes if isinstance(route, GatedRoute) and route.spec.scope is not None}
        async with client_of(asgi) as http:
            yield TwoTenants(app, Api(http), headers, sorted(routes, key=lambda spec: spec.name))


def without_id(response: httpx.Response, id: str) -> tuple[int, str]:
    return response.status_code, response.text.replace(id, "<id>")


@pytest.mark.promise("no-secrets")
async def test_every_instance_route_hides_instances_of_other_tenants(tenants: TwoTenants) -> None:
    before = await tenants.state_of("globex")
    tried = 0
    for spec in tenants.routes:
        if spec.reach is not Reach.ONE:
            continue
        for workflow in OF_EACH_KIND:
            path = spec.path.replace("{workflow}", workflow).replace("{run}", "0").replace("{stream}", "tokens")
            theirs = await tenants.send("acme", spec, path.replace("{instance_id}", "globex-0"))
            unused = await tenants.send("acme", spec, path.replace("{instance_id}", "globex-9"))
            missing = await tenants.send("acme", spec, path.replace("{instance_id}", "acme-9"))

            assert (theirs.status_code, theirs.json()["code"]) == (404, "INSTANCE_NOT_FOUND"), spec.name
            assert without_id(theirs, "globex-0") == without_id(unused, "globex-9"), spec.name
            if spec.name != "getAudit" and (not spec.needs_units or workflow == "pipeline"):
                # The audit records of a deleted instance stay readable, so that route does not need the instance.
                assert without_id(theirs, "globex-0") == without_id(missing, "acme-9"), spec.name
            tried += 1
    assert tried >= 14 * len(OF_EACH_KIND)
    assert await tenants.state_of("globex") == before


async def test_instance_routes_work_for_the_instances_own_tenant(tenants: TwoTenants) -> None:
    for spec in tenants.routes:
        if spec.reach is Reach.ONE and not spec.needs_units and not spec.streams:
            path = spec.path.replace("{workflow}", "order.process").replace("{instance_id}", "acme-0")
            response = await tenants.send("acme", spec, path.replace("{run}", "0"))
            assert response.status_code in (200, 202, 409), (spec.name, response.text)


async def test_a_tenant_cannot_create_an_id_of_another_tenant(tenants: TwoTenants) -> None:
    before = [await tenants.state_of(tenant) for tenant in ("acme", "globex")]
    creating = [spec for spec in tenants.routes if spec.reach is Reach.NEW]
    assert creating
    for spec in creating:
        path = spec.path.replace("{workflow}", "waiter")
        responses = []
        for theirs in ("globex-0", "globex-9"):  # one that exists, one that does not
            mixed = {"instances": [{"id": "acme-7"}, {"id": theirs}]}
            bodies: list[Any] = [{"id": theirs}, {"instances": [{"id": theirs}]}, mixed]
            for body in bodies:
                if ("instances" in body) == spec.path.endswith("/batch"):
                    response = await tenants.send("acme", spec, path, body)
                    assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN"), body
                    responses.append(without_id(response, theirs))
        assert len(set(responses)) == 1
    response = await tenants.send(
        "acme", next(spec for spec in creating if "batch" not in spec.path), "/waiter/instances", {}
    )
    assert response.status_code == 403
    assert [await tenants.state_of(tenant) for tenant in ("acme", "globex")] == before


async def test_a_tenant_can_create_its_own_ids(tenants: TwoTenants) -> None:
    for spec in tenants.routes:
        if spec.reach is Reach.NEW:
            response = await tenants.send("acme", spec, spec.path.replace("{workflow}", "waiter"))
            assert response.status_code == 200, response.text
    assert [instance.id for instance in (await tenants.app.list("waiter", id_prefix="acme-new")).items] == ["acme-new"]


async def test_a_tenant_cannot_reach_other_instances_by_the_key_of_a_start_policy(tenants: TwoTenants) -> None:
    [spec] = [spec for spec in tenants.routes if spec.name == "createInstance"]
    await tenants.app.start("waiter", id="globex-5", singleton="queue", key="k")
    before = await tenants.state_of("globex")
    policies: list[dict[str, Any]] = [
        *({"id": "acme-5", "singleton": policy, "key": "k"} for policy in ("cancel_running", "replace_waiting")),
        {"dedupe": {"key": "k"}}, {"debounce": {"wait": "1h", "key": "k"}},
    ]  # fmt: skip
    if "Authorization" in tenants.headers["acme"]:  # with filters by attribute, all tenants share ids and keys
        policies += [{"id": "acme-5", "singleton": policy, "key": "k"} for policy in ("skip", "queue")]
    for body in policies:
        response = await tenants.send("acme", spec, "/waiter/instances", body)
        assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN"), body
        assert "globex" not in response.text

    assert await tenants.state_of("globex") == before


async def test_lists_show_only_instances_of_the_tenant(tenants: TwoTenants) -> None:
    listing = [
        spec for spec in tenants.routes if spec.reach is Reach.LIST and spec.method == "GET" and not spec.streams
    ]
    assert listing
    # The cursor is after the newest instance, which belongs to the other tenant.
    cursor = (await tenants.app.list("waiter", limit=1)).cursor
    queries = ["", "pageSize=1", "status=paused", f"cursor={cursor}", "cursor=i999999", "idPrefix=acme", "search.n=1"]
    conflicts = ["idPrefix=globex-", "idPrefix=globex-0", "search.secret=globexs", "search.tenant=globex",
                 "search.tenant=globex&search.tenant=acme", "search.tenant=%3E%3Dglobex"]  # fmt: skip
    for spec in listing:
        for workflow in OF_EACH_KIND:
            path = spec.path.replace("{workflow}", workflow)
            own = f"workflow={workflow}&"  # of the list of all instances; other lists ignore it
            for query in queries:
                response = await tenants.send("acme", spec, f"{path}?{own}{query}")
                assert response.status_code == 200, response.text
                assert "globex" not in response.text, query
            for query in conflicts:
                response = await tenants.send("acme", spec, f"{path}?{own}{query}")
                assert response.json() == {"instances": [], "hasNextPage": False}, query
            listed = (await tenants.send("acme", spec, f"{path}?{own}")).json()["instances"]
            assert [instance["id"] for instance in listed] == ["acme-1", "acme-0"]


async def test_a_bulk_action_affects_only_instances_of_the_tenant(tenants: TwoTenants) -> None:
    [bulk] = [spec for spec in tenants.routes if spec.reach is Reach.LIST and spec.method == "POST"]
    before = await tenants.state_of("globex")

    for conditions in ({"status": "paused"}, {"idPrefix": "globex-"}, {"search": {"tenant": "globex"}}):
        wanted = {"action": "terminate", "filter": conditions, "dryRun": True}
        response = await tenants.send("acme", bulk, bulk.path, wanted)
        assert response.status_code == 200, response.text
        assert "globex" not in response.text
        assert response.json()["count"] == (0 if "globex" in str(conditions) else 2 * len(OF_EACH_KIND))
    response = await tenants.send(
        "acme", bulk, bulk.path, {"action": "terminate", "filter": {"status": "paused"}, "dryRun": False}
    )
    assert response.status_code == 200, response.text
    for workflow in OF_EACH_KIND:
        for n in range(2):
            with pytest.raises(RunTerminatedError):
                await (await tenants.app.get(workflow, f"acme-{n}")).result(timeout=60)

    assert await tenants.state_of("globex") == before


async def test_paging_ends_after_the_instances_of_the_tenant(tenants: TwoTenants) -> None:
    [spec] = [spec for spec in tenants.routes if spec.name == "listInstances"]
    seen: list[str] = []
    query = ""
    while True:
        page = (await tenants.send("acme", spec, f"/waiter/instances?pageSize=1{query}")).json()
        seen += [instance["id"] for instance in page["instances"]]
        if not page["hasNextPage"]:
            break
        query = f"&cursor={page['cursor']}"

    assert seen == ["acme-1", "acme-0"]


async def test_routes_without_instances_show_no_instances(tenants: TwoTenants) -> None:
    tried = set()
    for spec in tenants.routes:
        if spec.reach is Reach.NONE:
            response = await tenants.send("acme", spec, spec.path.replace("{workflow}", "pipeline"))
            assert response.status_code == 200, spec.name
            assert "globex" not in response.text
            tried.add(spec.name)
    assert tried == {"drawGraph", "getHealth", "getMe", "getOpenapi", "listDefinitions", "listWorkflows"}


async def test_routes_about_all_instances_are_refused_to_a_tenant(tenants: TwoTenants) -> None:
    before = await tenants.state_of("globex")
    tried = set()
    for spec in tenants.routes:
        if spec.reach is Reach.ALL:
            response = await tenants.send("acme", spec, spec.path)
            assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN")
            tried.add(spec.name)
    assert {"tick", "getStats", "listWorkers", "listQueues"} <= tried
    assert await tenants.state_of("globex") == before


async def test_an_unknown_path_reveals_nothing(tenants: TwoTenants) -> None:
    if "Authorization" not in tenants.headers["acme"]:
        return  # without a request hook the path is denied
    for path in ("/waiter/instances/globex-0/nope", "/nope/instances/globex-0", "/globex"):
        response = await tenants.api.send("GET", path, headers=tenants.headers["acme"])
        assert response.status_code == 404
        assert "globexs" not in response.text


@pytest.mark.above_the_store
async def test_a_caller_without_a_tenant_is_refused_everywhere() -> None:
    authorize, _ = page_policy()
    app, _ = make_shop(authorize=authorize)
    async with app.connect(), client_of(app.asgi(tick=True, debug=True)) as http:
        for route in app.asgi(tick=True, debug=True).routes:
            assert isinstance(route, GatedRoute)
            if route.spec.scope is not None:
                for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "acme"}, {"X-Tenant": "acme"}):
                    response = await http.request(route.spec.method, route.spec.path, headers=headers)
                    assert response.status_code == 401, route.spec.name
