"""What authorization hooks are told of a request, when they are asked, and what the filters they return do."""

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


class Looking:
    """A hook that keeps what a look at each request gives."""

    def __init__(self, look: Any, answer: Filter | None = None) -> None:
        self.seen: list[Any] = []
        self._look = look
        self._answer = answer

    async def __call__(self, request: AuthRequest) -> Filter | None:
        self.seen.append(self._look(request))
        return self._answer


@asynccontextmanager
async def serve(authorize: Authorize, where: dict[str, Any] | None = None) -> AsyncIterator[tuple[Api, Holdfast]]:
    app, _ = make_shop(**(where or {}), authorize=authorize)
    async with app.connect(), client_of(app.asgi(tick=True)) as http:
        yield Api(http), app


# --- what a hook is told


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["request", "create"])
async def test_a_hook_sees_the_instances_that_are_created(name: str) -> None:
    hook = Looking(lambda request: (request.route, list(request.instances)))
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
    hook = Looking(lambda request: (request.instance_id, request.event))
    async with serve(Authorize(**{name: hook})) as (api, app):
        await app.start("waiter", id="w")
        await api.post("/waiter/instances/w/events", {"type": "go", "payload": [1], "id": "e"})

    assert hook.seen == [("w", AuthEvent("go", [1], "e"))]


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["request", "read"])
async def test_a_hook_sees_the_filters_of_a_list(name: str) -> None:
    hook = Looking(lambda request: (request.filters, request.query.get("status")))
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
    hook = Looking(lambda request: (request.scope, request.body, request.instances, request.event, request.filters))
    async with serve(Authorize(**{hooked: hook})) as (api, app):
        for name in ("a", "b"):
            await app.start("waiter", id=name)
        await api.post("/waiter/instances/a/cancel", {"reason": "enough"})
        await api.post("/waiter/instances/b/pause")

    assert hook.seen == [("manage", {"reason": "enough"}, (), None, None), ("manage", {}, (), None, None)]


@pytest.mark.above_the_store
async def test_a_hook_sees_the_address_of_the_client() -> None:
    hook = Looking(lambda request: request.client)
    app, _ = make_shop(authorize=Authorize(request=hook))
    async with app.connect():
        async with client_of(app.asgi(), client=("192.0.2.7", 4711)) as http:
            await Api(http).get("")
        scope = {
            "type": "http", "method": "GET", "path": "/api/workflows", "root_path": "", "query_string": b"",
            "headers": [], "server": ("test", 80), "client": None,
        }  # fmt: skip
        await app.asgi()(scope, None, _forget)  # type: ignore[arg-type]

    assert hook.seen == ["192.0.2.7", None]


async def _forget(_message: Any) -> None: ...


def test_a_request_shows_neither_headers_nor_params_nor_payloads() -> None:
    content = AuthContent({"a": "secret"}, [AuthInstance("i", "secret")], AuthEvent("t", "secret"))
    request = AuthRequest("r", "POST", "w", "i", {"h": "secret"}, query={"q": "secret"}, content=content)

    assert "secret" not in f"{request}{content}"


# --- when hooks are asked


class Body:
    """A body that notes whether somebody has read it."""

    def __init__(self, data: bytes) -> None:
        self.read = False
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.read = True
        yield self._data


async def _sent(app: Holdfast, path: str, body: Body) -> int:
    """The status of the answer to a POST whose body can be watched."""
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
    async def nobody(_request: AuthRequest) -> None:
        raise Denied(401, "no")

    app, _ = make_shop(authorize=Authorize(request=nobody))
    body = Body(b"{}")

    assert await _sent(app, "/waiter/instances", body) == 401
    assert not body.read


@pytest.mark.above_the_store
@pytest.mark.parametrize("catching", [False, True])
async def test_a_request_hook_that_looks_at_the_body_is_asked_again_when_it_is_read(catching: bool) -> None:
    asked: list[str] = []

    async def hook(request: AuthRequest) -> None:
        asked.append("asked")
        try:
            ids = [one.id for one in request.instances]
        except RuntimeError:
            if catching:
                raise Denied(403, "cannot know") from None
            raise
        asked.append(f"saw {ids}")
        if ids == ["b"]:
            raise Denied(403, "no")

    async with serve(Authorize(request=hook)) as (api, app):
        await api.post("/waiter/instances", {"id": "a"})
        assert await api.refused("POST", "/waiter/instances", json={"id": "b"}) == (403, "FORBIDDEN")
        assert [one.id for one in (await app.list("waiter")).items] == ["a"]

    assert asked == ["asked", "asked", "saw ['a']", "asked", "asked", "saw ['b']"]


@pytest.mark.above_the_store
async def test_a_hook_is_asked_once_about_a_request_without_a_body() -> None:
    hook = Looking(lambda request: (request.instances, request.body))
    async with serve(Authorize(request=hook)) as (api, _):
        await api.get("")

    assert len(hook.seen) == 1


@pytest.mark.above_the_store
async def test_a_refining_hook_is_asked_after_the_body_was_checked_and_before_the_store_is() -> None:
    hook = Looking(lambda request: request.route)
    app, _ = make_shop(authorize=Authorize(create=hook, send_event=hook, read=hook))
    body = Body(b"{")

    assert await _sent(app, "/waiter/instances", body) == 400  # the app is not even open
    assert hook.seen == []
    assert await _sent(app, "/waiter/instances", Body(b"{}")) == 503
    assert hook.seen == ["createInstance"]


@pytest.mark.above_the_store
async def test_a_body_over_the_limit_is_refused_before_a_refining_hook_is_asked() -> None:
    hook = Looking(lambda request: request.body)
    async with serve(Authorize(create=hook)) as (api, app):
        large = b'{"params": "' + b"x" * app.limits.body + b'"}'
        assert await api.refused("POST", "/echo/instances", content=large) == (413, "PAYLOAD_TOO_LARGE")

    assert hook.seen == []


@pytest.mark.above_the_store
async def test_the_document_says_that_a_hook_may_refuse_with_any_status() -> None:
    async with serve(Authorize(request=Looking(lambda _: None))) as (api, _):
        guarded = (await api.get("/openapi.json"))["paths"]
    async with serve(Authorize()) as (api, _):
        unguarded = (await api.get("/openapi.json"))["paths"]

    for paths, refusing in ((guarded, True), (unguarded, False)):
        assert ("4XX" in paths["/api/workflows"]["get"]["responses"]) is refusing
        assert "4XX" not in paths["/api/workflows/_health/live"]["get"]["responses"]


# --- what is not told


@pytest.mark.above_the_store
async def test_a_workflow_that_is_not_found_does_not_tell_the_others() -> None:
    async with serve(Authorize()) as (api, _):
        for method, path in (("GET", "/nope/instances"), ("POST", "/nope/instances"), ("GET", "/nope/instances/a")):
            answer = await api.send(method, path, **({"json": {}} if method == "POST" else {}))
            assert (answer.status_code, answer.json()) == (
                404,
                {"message": "no workflow named 'nope' is registered", "code": "WORKFLOW_NOT_FOUND"},
            )


@pytest.mark.above_the_store
async def test_whoever_is_denied_is_not_told_which_workflows_there_are() -> None:
    async def nobody(_request: AuthRequest) -> None:
        raise Denied(403, "no")

    async with serve(Authorize(create=nobody, read=nobody)) as (api, _):
        for path in ("/waiter/instances", "/nope/instances"):
            for method in ("GET", "POST"):
                answer = await api.send(method, path, **({"json": {}} if method == "POST" else {}))
                assert (answer.status_code, answer.json()["message"]) == (403, "no")


# --- filters


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "options",
    [{"id_prefix": ""}, {"id_prefix": "-a"}, {"id_prefix": "a%"}, {"id_prefix": 5}, {"status": "done"}, {"search": []},
     {"search": {"a b": 1}}, {"search": {"a": ("~", 1)}}],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_refused(options: Any) -> None:
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
async def test_what_a_filter_lists_is_what_it_lets_through(where: dict[str, Any], options: Any) -> None:
    """The store decides for lists, the client for single instances."""
    hook = Looking(lambda request: request.route, Filter(**options))
    async with serve(Authorize(read=hook), where) as (api, app):
        searches: list[Any] = [{}, {"city": "Bonn", "n": 1}, {"city": ["Bonn", "Aachen"], "n": 2.5}, {"n": "1"}]
        ids = [f"{letter}-{n}" for letter in "ab" for n in range(len(searches))]
        for one, search in zip(ids, searches * 2, strict=True):
            run = await app.start("waiter", id=one, search=search)
            if one.endswith("1"):
                await run.pause()
        listed = {one["id"] for one in (await api.get("/waiter/instances"))["instances"]}
        shown = {one for one in ids if (await api.send("GET", f"/waiter/instances/{one}")).status_code == 200}
        by_hand = {one.id for one in (await app.list("waiter", **options)).items}

    assert listed == shown == by_hand


async def test_a_caller_cannot_widen_the_filter_of_a_list(where: dict[str, Any]) -> None:
    hook = Looking(lambda request: None, Filter(search={"tenant": "a"}, id_prefix="x-"))
    async with serve(Authorize(read=hook), where) as (api, app):
        for tenant in "ab":
            for n in range(3):
                await app.start("waiter", id=f"x-{tenant}{n}", search={"tenant": tenant, "n": n})
        await app.start("waiter", id="y", search={"tenant": "a"})

        async def found(query: str = "") -> list[str]:
            return [one["id"] for one in (await api.get(f"/waiter/instances?{query}"))["instances"]]

        assert await found() == ["x-a2", "x-a1", "x-a0"]
        assert await found("search.n=1") == ["x-a1"]
        assert await found("idPrefix=x-a2") == ["x-a2"]
        assert await found("idPrefix=x") == ["x-a2", "x-a1", "x-a0"]
        for conflict in ("search.tenant=b", "search.tenant=%3E%3Db", "idPrefix=y", "idPrefix=x-b", "status=paused"):
            assert await found(conflict) == []
        newest = (await app.list("waiter", limit=1)).cursor
        assert await found(f"cursor={newest}&pageSize=2") == ["x-a2", "x-a1"]


async def test_the_filters_of_two_hooks_must_both_be_met(where: dict[str, Any]) -> None:
    hooks = Authorize(
        request=Looking(lambda _: None, Filter(id_prefix="a-")),
        read=Looking(lambda _: None, Filter(search={"n": 1})),
        manage=Looking(lambda _: None, Filter(id_prefix="b-")),
    )
    async with serve(hooks, where) as (api, app):
        for name, n in (("a-1", 1), ("a-2", 2), ("b-1", 1)):
            await app.start("waiter", id=name, search={"n": n})

        assert [one["id"] for one in (await api.get("/waiter/instances"))["instances"]] == ["a-1"]
        for name in ("a-1", "b-1"):
            assert await api.refused("POST", f"/waiter/instances/{name}/pause") == (404, "INSTANCE_NOT_FOUND")


@pytest.mark.above_the_store
async def test_a_filter_by_attributes_cannot_allow_a_creation() -> None:
    hook = Looking(lambda _: None, Filter(search={"tenant": "a"}))
    async with serve(Authorize(request=hook)) as (api, app):
        for body in ({}, {"id": "a"}):
            assert await api.refused("POST", "/waiter/instances", json=body) == (403, "FORBIDDEN")
        assert (await app.list("waiter")).items == []


@pytest.mark.above_the_store
async def test_an_id_prefix_that_is_not_one_is_refused_over_http_and_in_python() -> None:
    async with serve(Authorize()) as (api, app):
        for prefix in ("", "-a", "a%25", "x" * 101):
            assert await api.refused("GET", f"/waiter/instances?idPrefix={prefix}") == (400, "VALIDATION_ERROR")
        assert await api.refused("GET", "/waiter/instances?idPrefix=a&idPrefix=b") == (400, "VALIDATION_ERROR")
        with pytest.raises(InvalidOptionError, match="id_prefix"):
            await app.list("waiter", id_prefix="")
