"""Two tenants behind the hook of docs/routes.md: neither can see, change or guess anything of the other.

Routes are taken from the application itself, so that a new one is tried too.
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

from holdfast import Authorize, AuthRequest, Denied, Filter, Holdfast
from holdfast.http.gate import GatedRoute
from holdfast.http.spec import Reach, Spec

EVERY_STORE = True

PAGE = Path(__file__).parents[2] / "docs" / "routes.md"
OF_EACH_KIND = ("waiter", "pipeline", "order.process")
BODIES: dict[str, Any] = {
    "createInstances": {"instances": [{"id": "acme-new"}]},
    "createInstance": {"id": "acme-new"},
    "sendEvent": {"type": "go", "id": "e"},
}


def policy_of_the_page() -> tuple[Authorize, dict[str, dict[str, str]]]:
    """The policy that the page shows, and the headers of each tenant."""
    section = PAGE.read_text().split("A hook is an async function.")[1]
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names["tenants"], {tenant: {"Authorization": token} for token, tenant in names["TENANTS"].items()}


async def policy_by_attribute(request: AuthRequest) -> Filter:
    return Filter(search={"tenant": request.headers["x-tenant"]})


async def creation_by_attribute(request: AuthRequest) -> None:
    if any(not (one.id or "").startswith(request.headers["x-tenant"]) for one in request.instances):
        raise Denied(403, "not yours")


def policies() -> dict[str, tuple[Authorize, dict[str, dict[str, str]]]]:
    by_attribute = Authorize(
        read=policy_by_attribute, manage=policy_by_attribute, send_event=policy_by_attribute, tick=policy_by_attribute,
        create=creation_by_attribute,
    )  # fmt: skip
    return {
        "the page's": policy_of_the_page(),
        "by attribute": (by_attribute, {name: {"X-Tenant": name} for name in ("acme", "globex")}),
    }


@dataclass(frozen=True)
class Two:
    """A server with instances of two tenants, paused, and what each of them says."""

    app: Holdfast
    api: Api
    headers: dict[str, dict[str, str]]
    routes: Sequence[Spec]

    async def ask(self, tenant: str, spec: Spec, path: str, body: Any = None) -> httpx.Response:
        options = {"json": body if body is not None else BODIES.get(spec.name, {})} if spec.method == "POST" else {}
        return await self.api.send(spec.method, path, headers=self.headers[tenant], **options)

    async def everything_of(self, tenant: str) -> list[Any]:
        found = []
        for workflow in OF_EACH_KIND:
            for one in (await self.app.list(workflow, id_prefix=f"{tenant}-", limit=100)).items:
                run = await self.app.get(workflow, one.id)
                found += [await run.describe(), await run.history()]
        return found


@pytest.fixture(params=["the page's", "by attribute"])
async def two(request: pytest.FixtureRequest, where: dict[str, Any]) -> AsyncIterator[Two]:
    authorize, headers = policies()[request.param]
    app, _ = make_shop(**where, authorize=authorize)
    async with app.connect():
        for tenant in ("acme", "globex"):
            for n in range(2):
                for workflow in OF_EACH_KIND:
                    search = {"tenant": tenant, "secret": f"{tenant}s"}
                    await (await app.start(workflow, id=f"{tenant}-{n}", search=search)).pause()
        asgi = app.asgi(tick=True)
        routes = {route.spec for route in asgi.routes if isinstance(route, GatedRoute) and route.spec.scope is not None}
        async with client_of(asgi) as http:
            yield Two(app, Api(http), headers, sorted(routes, key=lambda spec: spec.name))


def without(answer: httpx.Response, id: str) -> tuple[int, str]:
    return answer.status_code, answer.text.replace(id, "<id>")


async def test_every_route_about_an_instance_hides_those_of_others(two: Two) -> None:
    before = await two.everything_of("globex")
    tried = 0
    for spec in two.routes:
        if spec.reach is not Reach.ONE:
            continue
        for workflow in OF_EACH_KIND:
            path = spec.path.replace("{workflow}", workflow).replace("{run}", "0")
            theirs = await two.ask("acme", spec, path.replace("{instance_id}", "globex-0"))
            nobodys = await two.ask("acme", spec, path.replace("{instance_id}", "globex-9"))
            missing = await two.ask("acme", spec, path.replace("{instance_id}", "acme-9"))

            assert (theirs.status_code, theirs.json()["code"]) == (404, "INSTANCE_NOT_FOUND"), spec.name
            assert without(theirs, "globex-0") == without(nobodys, "globex-9"), spec.name
            if spec.kind is None or workflow == "pipeline":
                assert without(theirs, "globex-0") == without(missing, "acme-9"), spec.name
            tried += 1
    assert tried >= 14 * len(OF_EACH_KIND)
    assert await two.everything_of("globex") == before


async def test_routes_about_an_instance_work_for_its_own_tenant(two: Two) -> None:
    for spec in two.routes:
        if spec.reach is Reach.ONE and spec.kind is None:
            path = spec.path.replace("{workflow}", "order.process").replace("{instance_id}", "acme-0")
            answer = await two.ask("acme", spec, path.replace("{run}", "0"))
            assert answer.status_code in (200, 409), (spec.name, answer.text)


async def test_nothing_is_created_under_an_id_of_others(two: Two) -> None:
    before = [await two.everything_of(tenant) for tenant in ("acme", "globex")]
    creating = [spec for spec in two.routes if spec.reach is Reach.NEW]
    assert creating
    for spec in creating:
        path = spec.path.replace("{workflow}", "waiter")
        answers = []
        for theirs in ("globex-0", "globex-9"):  # one that exists, one that does not
            mixed = {"instances": [{"id": "acme-7"}, {"id": theirs}]}
            bodies: list[Any] = [{"id": theirs}, {"instances": [{"id": theirs}]}, mixed]
            for body in bodies:
                if ("instances" in body) == spec.path.endswith("/batch"):
                    answer = await two.ask("acme", spec, path, body)
                    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN"), body
                    answers.append(without(answer, theirs))
        assert len(set(answers)) == 1
    answer = await two.ask("acme", next(one for one in creating if "batch" not in one.path), "/waiter/instances", {})
    assert answer.status_code == 403
    assert [await two.everything_of(tenant) for tenant in ("acme", "globex")] == before


async def test_a_tenant_creates_what_is_its_own(two: Two) -> None:
    for spec in two.routes:
        if spec.reach is Reach.NEW:
            answer = await two.ask("acme", spec, spec.path.replace("{workflow}", "waiter"))
            assert answer.status_code == 200, answer.text
    assert [one.id for one in (await two.app.list("waiter", id_prefix="acme-new")).items] == ["acme-new"]


async def test_lists_show_only_a_tenants_own(two: Two) -> None:
    listing = [spec for spec in two.routes if spec.reach is Reach.LIST]
    assert listing
    cursor = (await two.app.list("waiter", limit=1)).cursor  # behind the newest, which is the other's
    queries = ["", "pageSize=1", "status=paused", f"cursor={cursor}", "cursor=i999999", "idPrefix=acme", "search.n=1"]
    conflicts = ["idPrefix=globex-", "idPrefix=globex-0", "search.secret=globexs", "search.tenant=globex",
                 "search.tenant=globex&search.tenant=acme", "search.tenant=%3E%3Dglobex"]  # fmt: skip
    for spec in listing:
        for workflow in OF_EACH_KIND:
            path = spec.path.replace("{workflow}", workflow)
            for query in queries:
                answer = await two.ask("acme", spec, f"{path}?{query}")
                assert answer.status_code == 200, answer.text
                assert "globex" not in answer.text, query
            for query in conflicts:
                answer = await two.ask("acme", spec, f"{path}?{query}")
                assert answer.json() == {"instances": [], "hasNextPage": False}, query
            every = (await two.ask("acme", spec, path)).json()["instances"]
            assert [one["id"] for one in every] == ["acme-1", "acme-0"]


async def test_pages_end_where_a_tenants_own_end(two: Two) -> None:
    [spec] = [spec for spec in two.routes if spec.name == "listInstances"]
    seen: list[str] = []
    query = ""
    while True:
        page = (await two.ask("acme", spec, f"/waiter/instances?pageSize=1{query}")).json()
        seen += [one["id"] for one in page["instances"]]
        if not page["hasNextPage"]:
            break
        query = f"&cursor={page['cursor']}"

    assert seen == ["acme-1", "acme-0"]


async def test_routes_about_no_instance_show_none(two: Two) -> None:
    tried = set()
    for spec in two.routes:
        if spec.reach is Reach.NONE:
            answer = await two.ask("acme", spec, spec.path.replace("{workflow}", "pipeline"))
            assert answer.status_code == 200, spec.name
            assert "globex" not in answer.text
            tried.add(spec.name)
    assert tried == {"drawGraph", "getHealth", "getOpenapi", "listWorkflows"}


async def test_routes_about_all_instances_are_refused(two: Two) -> None:
    before = await two.everything_of("globex")
    tried = set()
    for spec in two.routes:
        if spec.reach is Reach.ALL:
            answer = await two.ask("acme", spec, spec.path)
            assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
            tried.add(spec.name)
    assert tried == {"tick"}
    assert await two.everything_of("globex") == before


async def test_a_path_that_does_not_exist_tells_nothing(two: Two) -> None:
    if "Authorization" not in two.headers["acme"]:
        return  # without a request hook, it is denied
    for path in ("/waiter/instances/globex-0/nope", "/nope/instances/globex-0", "/globex"):
        answer = await two.api.send("GET", path, headers=two.headers["acme"])
        assert answer.status_code == 404
        assert "globexs" not in answer.text


@pytest.mark.above_the_store
async def test_whoever_has_no_tenant_gets_nothing() -> None:
    authorize, _ = policy_of_the_page()
    app, _ = make_shop(authorize=authorize)
    async with app.connect(), client_of(app.asgi(tick=True)) as http:
        for route in app.asgi(tick=True).routes:
            assert isinstance(route, GatedRoute)
            if route.spec.scope is not None:
                for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "acme"}, {"X-Tenant": "acme"}):
                    answer = await http.request(route.spec.method, route.spec.path, headers=headers)
                    assert answer.status_code == 401, route.spec.name
