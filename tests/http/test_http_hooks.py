"""Authorization hooks: the requests they receive, when they are called, and the effect of their filters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_api import Api, client_of
from http_shop import make_shop

from holdfast import (
    AuthContent,
    AuthEvent,
    AuthInstance,
    Authorize,
    AuthRequest,
    Denied,
    Filter,
    Holdfast,
    InvalidOptionError,
)

EVERY_STORE = True


class RecordingHook:
    """A hook that records a value computed from each request, and returns a fixed filter."""

    def __init__(self, read: Any, filter: Filter | None = None) -> None:
        self.seen: list[Any] = []
        self._read = read
        self._filter = filter

    async def __call__(self, request: AuthRequest) -> Filter | None:
        self.seen.append(self._read(request))
        return self._filter


@asynccontextmanager
async def serve(
    authorize: Authorize, database_options: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Api, Holdfast]]:
    app, _ = make_shop(**(database_options or {}), authorize=authorize)
    async with app.connect(), client_of(app.asgi(tick=True)) as http:
        yield Api(http), app


# --- the request that a hook receives


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["request", "create"])
async def test_a_hook_sees_the_instances_that_are_created(name: str) -> None:
    hook = RecordingHook(lambda request: (request.route, list(request.instances)))
    async with serve(Authorize(**{name: hook})) as (api, _):
        await api.post("/echo/instances", {"id": "a", "params": {"n": 1}})
        await api.post("/echo/instances", {})
        batch = {"instances": [{"id": "b", "params": 5}, {"id": "c"}]}
        await api.post("/echo/instances/batch", batch)

    assert hook.seen == [
        ("createInstance", [AuthInstance("a", {"n": 1})]),
        ("createInstance", [AuthInstance(None, None)]),
        ("createInstances", [AuthInstance("b", 5), AuthInstance("c", None)]),
    ]


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["request", "send_event"])
async def test_a_hook_sees_the_event_that_is_sent(name: str) -> None:
    hook = RecordingHook(lambda request: (request.instance_id, request.event))
    async with serve(Authorize(**{name: hook})) as (api, app):
        await app.start("waiter", id="w")
        await api.post("/waiter/instances/w/events", {"type": "go", "payload": [1], "id": "e"})

    assert hook.seen == [("w", AuthEvent("go", [1], "e"))]


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["request", "read"])
async def test_a_hook_sees_the_filters_of_a_list(name: str) -> None:
    hook = RecordingHook(lambda request: (request.filters, request.query.get("status")))
    async with serve(Authorize(**{name: hook})) as (api, _):
        query = "status=paused&idPrefix=a-&search.city=Bonn&search.n=%3E1&search.n=%3C5"
        await api.get(f"/waiter/instances?{query}")
        await api.get("/waiter/instances")

    search = {"city": "Bonn", "n": [(">", 1), ("<", 5)]}
    assert hook.seen == [
        (Filter(status="paused", search=search, id_prefix="a-"), "paused"),
        (Filter(search={}), None),
    ]


@pytest.mark.above_the_store
@pytest.mark.parametrize("hooked", ["request", "manage"])
async def test_a_hook_sees_the_fields_of_other_bodies(hooked: str) -> None:
    hook = RecordingHook(
        lambda request: (request.scope, request.body, request.instances, request.event, request.filters)
    )
    async with serve(Authorize(**{hooked: hook})) as (api, app):
        for name in ("a", "b"):
            await app.start("waiter", id=name)
        await api.post("/waiter/instances/a/cancel", {"reason": "enough"})
        await api.post("/waiter/instances/b/pause")

    assert hook.seen == [("manage", {"reason": "enough"}, (), None, None), ("manage", {}, (), None, None)]


@pytest.mark.above_the_store
async def test_a_hook_sees_the_address_of_the_client() -> None:
    hook = RecordingHook(lambda request: request.client)
    app, _ = make_shop(authorize=Authorize(request=hook))
    async with app.connect():
        async with client_of(app.asgi(), client=("192.0.2.7", 4711)) as http:
            await Api(http).get("")
        scope = {
            "type": "http", "method": "GET", "path": "/api/workflows", "root_path": "", "query_string": b"",
            "headers": [], "server": ("test", 80), "client": None,
        }  # fmt: skip
        await app.asgi()(scope, None, _discard)  # type: ignore[arg-type]

    assert hook.seen == ["192.0.2.7", None]


async def _discard(_message: Any) -> None: ...


@pytest.mark.promise("no-secrets", store=None)
def test_a_request_shows_neither_headers_nor_params_nor_payloads() -> None:
    content = AuthContent({"a": "secret"}, [AuthInstance("i", "secret")], AuthEvent("t", "secret"))
    request = AuthRequest("r", "POST", "w", "i", {"h": "secret"}, query={"q": "secret"}, content=content)

    assert "secret" not in f"{request}{content}"


# --- the time of hook calls


class Body:
    """A body that records whether it has been read."""

    def __init__(self, data: bytes) -> None:
        self.read = False
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.read = True
        yield self._data


async def _post(app: Holdfast, path: str, body: Body) -> int:
    """Send a POST without a server and return the status of the response."""
    sent: list[Any] = []

    async def receive() -> Any:
        data = b"".join([part async for part in body])
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": f"/api/workflows{path}", "root_path": "", "query_string": b"",
        "headers": [], "server": ("test", 80),
    }  # fmt: skip
    await app.asgi()(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.above_the_store
async def test_the_request_hook_refuses_before_the_body_is_read() -> None:
    async def deny(_request: AuthRequest) -> None:
        raise Denied(401, "no")

    app, _ = make_shop(authorize=Authorize(request=deny))
    body = Body(b"{}")

    assert await _post(app, "/waiter/instances", body) == 401
    assert not body.read


@pytest.mark.above_the_store
@pytest.mark.parametrize("catching", [False, True])
async def test_a_request_hook_that_accesses_the_body_is_called_again_when_it_is_read(catching: bool) -> None:
    calls: list[str] = []

    async def hook(request: AuthRequest) -> None:
        calls.append("called")
        try:
            ids = [instance.id for instance in request.instances]
        except RuntimeError:
            if catching:
                raise Denied(403, "cannot know") from None
            raise
        calls.append(f"saw {ids}")
        if ids == ["b"]:
            raise Denied(403, "no")

    async with serve(Authorize(request=hook)) as (api, app):
        await api.post("/waiter/instances", {"id": "a"})
        assert await api.refused("POST", "/waiter/instances", json={"id": "b"}) == (403, "FORBIDDEN")
        assert [instance.id for instance in (await app.list("waiter")).items] == ["a"]

    assert calls == ["called", "called", "saw ['a']", "called", "called", "saw ['b']"]


@pytest.mark.above_the_store
async def test_a_hook_is_called_once_for_a_request_without_a_body() -> None:
    hook = RecordingHook(lambda request: (request.instances, request.body))
    async with serve(Authorize(request=hook)) as (api, _):
        await api.get("")

    assert len(hook.seen) == 1


@pytest.mark.above_the_store
async def test_a_refining_hook_is_called_after_the_body_is_checked_and_before_the_store_is_read() -> None:
    hook = RecordingHook(lambda request: request.route)
    app, _ = make_shop(authorize=Authorize(create=hook, send_event=hook, read=hook))
    body = Body(b"{")

    assert await _post(app, "/waiter/instances", body) == 400  # the app is not open
    assert hook.seen == []
    assert await _post(app, "/waiter/instances", Body(b"{}")) == 503
    assert hook.seen == ["createInstance"]


@pytest.mark.above_the_store
async def test_a_body_over_the_limit_is_refused_before_a_refining_hook_is_called() -> None:
    hook = RecordingHook(lambda request: request.body)
    async with serve(Authorize(create=hook)) as (api, app):
        large = b'{"params": "' + b"x" * app.limits.body + b'"}'
        assert await api.refused("POST", "/echo/instances", content=large) == (413, "PAYLOAD_TOO_LARGE")

    assert hook.seen == []


@pytest.mark.above_the_store
async def test_the_document_has_a_4xx_response_for_routes_with_hooks() -> None:
    async with serve(Authorize(request=RecordingHook(lambda _: None))) as (api, _):
        guarded = (await api.get("/openapi.json"))["paths"]
    async with serve(Authorize()) as (api, _):
        unguarded = (await api.get("/openapi.json"))["paths"]

    for paths, expected in ((guarded, True), (unguarded, False)):
        assert ("4XX" in paths["/api/workflows"]["get"]["responses"]) is expected
        assert "4XX" not in paths["/api/workflows/_health/live"]["get"]["responses"]


# --- information hidden from callers


@pytest.mark.above_the_store
async def test_the_error_for_an_unknown_workflow_does_not_name_the_registered_ones() -> None:
    async with serve(Authorize()) as (api, _):
        for method, path in (("GET", "/nope/instances"), ("POST", "/nope/instances"), ("GET", "/nope/instances/a")):
            response = await api.send(method, path, **({"json": {}} if method == "POST" else {}))
            assert (response.status_code, response.json()) == (
                404,
                {"message": "no workflow named 'nope' is registered", "code": "WORKFLOW_NOT_FOUND"},
            )


@pytest.mark.above_the_store
async def test_a_denied_caller_does_not_learn_which_workflows_exist() -> None:
    async def deny(_request: AuthRequest) -> None:
        raise Denied(403, "no")

    async with serve(Authorize(create=deny, read=deny)) as (api, _):
        for path in ("/waiter/instances", "/nope/instances"):
            for method in ("GET", "POST"):
                response = await api.send(method, path, **({"json": {}} if method == "POST" else {}))
                assert (response.status_code, response.json()["message"]) == (403, "no")


# --- filters


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "options",
    [{"id_prefix": ""}, {"id_prefix": "-a"}, {"id_prefix": "a%"}, {"id_prefix": 5}, {"status": "done"}, {"search": []},
     {"search": {"a b": 1}}, {"search": {"a": ("~", 1)}}],
)  # fmt: skip
def test_an_invalid_filter_is_refused(options: Any) -> None:
    with pytest.raises(InvalidOptionError):
        Filter(**options)


CASES: list[dict[str, Any]] = [
    {},
    {"status": "paused"},
    {"id_prefix": "a-"},
    {"id_prefix": "a-1"},
    {"search": {"city": "Bonn"}},
    {"search": {"city": "Bonn", "n": (">", 1)}},
    {"search": {"n": [(">=", 1), ("<", 2.5)]}},
    {"search": {"n": "1"}},
    {"search": {"n": True}},
    {"search": {"city": ("<=", "Bonn")}, "id_prefix": "b-"},
    {"search": {"city": "Bonn"}, "status": "paused"},
]


@pytest.mark.parametrize("options", CASES, ids=str)
async def test_a_filter_lists_the_same_instances_that_it_gives_access_to(
    database_options: dict[str, Any], options: Any
) -> None:
    """The store decides for lists, the client for single instances."""
    hook = RecordingHook(lambda request: request.route, Filter(**options))
    async with serve(Authorize(read=hook), database_options) as (api, app):
        searches: list[Any] = [{}, {"city": "Bonn", "n": 1}, {"city": ["Bonn", "Aachen"], "n": 2.5}, {"n": "1"}]
        ids = [f"{prefix}-{n}" for prefix in "ab" for n in range(len(searches))]
        for id_, search in zip(ids, searches * 2, strict=True):
            run = await app.start("waiter", id=id_, search=search)
            if id_.endswith("1"):
                await run.pause()
        listed = {instance["id"] for instance in (await api.get("/waiter/instances"))["instances"]}
        readable = {id_ for id_ in ids if (await api.send("GET", f"/waiter/instances/{id_}")).status_code == 200}
        by_client = {instance.id for instance in (await app.list("waiter", **options)).items}

    assert listed == readable == by_client


async def test_a_caller_cannot_widen_the_filter_of_a_list(database_options: dict[str, Any]) -> None:
    hook = RecordingHook(lambda request: None, Filter(search={"tenant": "a"}, id_prefix="x-"))
    async with serve(Authorize(read=hook), database_options) as (api, app):
        for tenant in "ab":
            for n in range(3):
                await app.start("waiter", id=f"x-{tenant}{n}", search={"tenant": tenant, "n": n})
        await app.start("waiter", id="y", search={"tenant": "a"})

        async def ids(query: str = "") -> list[str]:
            return [instance["id"] for instance in (await api.get(f"/waiter/instances?{query}"))["instances"]]

        assert await ids() == ["x-a2", "x-a1", "x-a0"]
        assert await ids("search.n=1") == ["x-a1"]
        assert await ids("idPrefix=x-a2") == ["x-a2"]
        assert await ids("idPrefix=x") == ["x-a2", "x-a1", "x-a0"]
        for conflict in ("search.tenant=b", "search.tenant=%3E%3Db", "idPrefix=y", "idPrefix=x-b", "status=paused"):
            assert await ids(conflict) == []
        newest = (await app.list("waiter", limit=1)).cursor
        assert await ids(f"cursor={newest}&pageSize=2") == ["x-a2", "x-a1"]


async def test_the_filters_of_two_hooks_must_both_be_met(database_options: dict[str, Any]) -> None:
    hooks = Authorize(
        request=RecordingHook(lambda _: None, Filter(id_prefix="a-")),
        read=RecordingHook(lambda _: None, Filter(search={"n": 1})),
        manage=RecordingHook(lambda _: None, Filter(id_prefix="b-")),
    )
    async with serve(hooks, database_options) as (api, app):
        for name, n in (("a-1", 1), ("a-2", 2), ("b-1", 1)):
            await app.start("waiter", id=name, search={"n": n})

        assert [instance["id"] for instance in (await api.get("/waiter/instances"))["instances"]] == ["a-1"]
        for name in ("a-1", "b-1"):
            assert await api.refused("POST", f"/waiter/instances/{name}/pause") == (404, "INSTANCE_NOT_FOUND")


@pytest.mark.above_the_store
async def test_a_filter_by_attributes_cannot_allow_a_creation() -> None:
    hook = RecordingHook(lambda _: None, Filter(search={"tenant": "a"}))
    async with serve(Authorize(request=hook)) as (api, app):
        for body in ({}, {"id": "a"}):
            assert await api.refused("POST", "/waiter/instances", json=body) == (403, "FORBIDDEN")
        assert (await app.list("waiter")).items == []


@pytest.mark.above_the_store
async def test_an_invalid_id_prefix_is_refused_over_http_and_in_python() -> None:
    async with serve(Authorize()) as (api, app):
        for prefix in ("", "-a", "a%25", "x" * 101):
            assert await api.refused("GET", f"/waiter/instances?idPrefix={prefix}") == (400, "VALIDATION_ERROR")
        assert await api.refused("GET", "/waiter/instances?idPrefix=a&idPrefix=b") == (400, "VALIDATION_ERROR")
        with pytest.raises(InvalidOptionError, match="id_prefix"):
            await app.list("waiter", id_prefix="")
