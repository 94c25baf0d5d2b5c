"""Live updates: streams of server-sent events about the overview, a list, one run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from http_api import Api
from http_shop import Gates, make_shop

from holdfast import Authorize, AuthRequest, BearerTokens, Denied, Filter, Holdfast
from holdfast.http import live

EVERY_STORE = True


class Page:
    """An open page: the events that it received."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            await self._chunks.put(message.get("body", b""))

    async def next(self, *events: str) -> Any:
        """The data of the next event with one of these names, and its id; other events are skipped."""
        async with asyncio.timeout(60):
            while True:
                while b"\n\n" not in self.body:
                    self.body += await self._chunks.get()
                text, self.body = self.body.split(b"\n\n", 1)
                fields = dict(line.split(": ", 1) for line in text.decode().split("\n") if not line.startswith(":"))
                if fields and (not events or fields["event"] in events):
                    return {**json.loads(fields["data"]), "event": fields["event"], "eventId": fields.get("id")}

    async def problem(self) -> Any:
        async with asyncio.timeout(60):
            return json.loads(await self._chunks.get())


@asynccontextmanager
async def opened(asgi: Any, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[Page]:
    page = Page()
    connection = {
        "type": "http", "method": "GET", "path": "/api/workflows/_live", "query_string": urlencode(query).encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "server": ("test", 80), "client": ("test", 1), "scheme": "http", "root_path": "", "http_version": "1.1",
    }  # fmt: skip

    async def receive() -> Any:
        await asyncio.Event().wait()

    serving = asyncio.ensure_future(asgi(connection, receive, page.send))
    try:
        yield page
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_page_of_a_run_receives_its_changes(shop: tuple[Holdfast, Any], api: Api) -> None:
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")
    async with opened(shop[0].asgi(), topic="run", workflow="waiter", id="w") as page:
        first = await page.next("run")
        await api.send("POST", "/waiter/instances/w/events", json={"type": "go"})
        while (last := await page.next("run"))["status"] != "complete":
            pass

    assert (first["status"], first["whyParts"]["kind"], first["events"]) == ("waiting", "event", 0)
    assert first["streams"] == 0
    assert (last["workflowName"], last["id"], last["events"]) == ("waiter", "w", 1)
    assert last["version"] >= first["version"]
    assert last["now"] >= first["now"]


async def test_a_page_of_a_chain_has_the_time_of_the_last_delivery(shop: tuple[Holdfast, Gates], api: Api) -> None:
    shop[1].door("outbox").set()
    await api.create("order.process", id="c")
    await api.until("order.process", "c", "waiting")
    async with asyncio.timeout(60):
        while None in (delivered := [event["deliveredAt"] for event in await _outbox(api)]):
            await asyncio.sleep(0.01)

    async with opened(shop[0].asgi(), topic="run", workflow="order.process", id="c") as page:
        shown = await page.next("run")

    assert shown["outbox"] == round(datetime.fromisoformat(max(delivered)).timestamp() * 1000)


async def _outbox(api: Api) -> Any:
    return (await api.get("/order.process/instances/c/outbox"))["events"]


async def test_a_page_of_a_list_gets_changed_rows_and_the_number_of_newer_ones(
    shop: tuple[Holdfast, Any], api: Api
) -> None:
    for n in range(3):
        await api.create("waiter", id=f"w{n}")
        await api.until("waiter", f"w{n}", "waiting")
    async with opened(shop[0].asgi(), topic="instances", workflow="waiter", status="waiting", pageSize=2) as page:
        first = await page.next("reset")
        await api.send("POST", "/waiter/instances/w1/terminate")
        while not (rows := await page.next("rows"))["gone"]:
            pass
        await api.create("waiter", id="new")
        while not (later := await page.next("rows"))["newer"]:
            pass

    assert [row["id"] for row in first["instances"]] == ["w2", "w1"]
    assert "waiting for an event" in first["instances"][0]["why"]
    assert rows["gone"] == ["waiter/w1"]
    assert [row["id"] for row in rows["changed"]] == ["w0"]
    assert later["newer"] == 1


@pytest.mark.above_the_store
async def test_a_page_that_reconnects_gets_the_state_only_if_it_changed(shop: tuple[Holdfast, Any], api: Api) -> None:
    asgi = shop[0].asgi()
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")
    topic = {"topic": "run", "workflow": "waiter", "id": "w"}
    async with opened(asgi, **topic) as other, opened(asgi, **topic) as page:
        await other.next("run")
        seen = (await page.next("run"))["eventId"]
        async with opened(asgi, {"last-event-id": seen}, **topic) as again:
            await api.send("POST", "/waiter/instances/w/pause")
            assert (await again.next())["status"] == "paused"  # not the state that the page has
        async with opened(asgi, {"last-event-id": "other.1"}, **topic) as again:
            assert (await again.next())["status"] == "paused"


async def test_the_overview_is_sent(shop: tuple[Holdfast, Any], api: Api) -> None:
    await api.create("failing", id="f")
    await api.until("failing", "f", "errored")
    async with opened(shop[0].asgi(), topic="overview") as page:
        overview = await page.next("overview")
    async with opened(shop[0].asgi(), topic="workers") as page:
        assert await page.next("changed")

    assert overview["stats"]["runs"]["failing"] == {"errored": 1}
    assert overview["attention"] == {"groups": 1, "runs": 1, "version": 1}
    assert overview["workers"] == {"alive": 1, "total": 1}


@pytest.mark.above_the_store
async def test_pages_that_show_the_same_share_one_read(
    shop: tuple[Holdfast, Any], api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asgi, reads = shop[0].asgi(), []
    monkeypatch.setattr(live, "_MIN_PAUSE_S", 0.05)
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")
    details = shop[0]._opened().client.details
    mark = details.mark

    async def counted(*address: str) -> Any:
        reads.append(address)
        return await mark(*address)

    monkeypatch.setattr(details, "mark", counted)
    async with opened(asgi, topic="run", workflow="waiter", id="w") as first:
        await first.next("run")
        async with (
            opened(asgi, topic="run", workflow="waiter", id="w") as second,
            opened(asgi, topic="run", workflow="waiter", id="w") as third,
        ):
            await second.next("run")
            await third.next("run")
            before = len(reads)
            await api.send("POST", "/waiter/instances/w/events", json={"type": "go"})
            for page in (first, second, third):
                while (await page.next("run"))["status"] != "complete":
                    pass
    assert len(reads) - before < 12
    assert not asgi.state.live._topics


@pytest.mark.above_the_store
async def test_a_topic_that_cannot_be_read_does_not_stop_the_others(
    shop: tuple[Holdfast, Any], api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asgi = shop[0].asgi()
    for name in ("bad", "good"):
        await api.create("waiter", id=name)
        await api.until("waiter", name, "waiting")
    details = shop[0]._opened().client.details
    mark = details.mark

    async def failing(workflow: str, id: str) -> Any:
        if id == "bad":
            raise RuntimeError("an unexpected error")
        return await mark(workflow, id)

    monkeypatch.setattr(details, "mark", failing)
    async with opened(asgi, topic="run", workflow="waiter", id="bad") as bad:
        async with opened(asgi, topic="run", workflow="waiter", id="good") as good:
            assert (await good.next("run"))["status"] == "waiting"
        monkeypatch.undo()
        assert (await bad.next("run"))["status"] == "waiting"
    assert [one.message for one in caplog.records].count("a topic of live updates cannot be read") == 1


@pytest.mark.above_the_store
async def test_streams_are_authorized_and_confined() -> None:
    async def tenant(request: AuthRequest) -> Filter:
        if "x-tenant" not in request.headers:
            raise Denied(401, "who are you")
        return Filter(id_prefix=f"{request.headers['x-tenant']}-")

    app, _ = make_shop(authorize=Authorize(request=tenant))
    async with app.connect():
        for name in ("acme-1", "globex-1"):
            await app.start("waiter", id=name)
        asgi, acme = app.asgi(), {"x-tenant": "acme"}
        async with opened(asgi, topic="overview") as page:
            assert ((await page.problem())["code"], page.status) == ("UNAUTHORIZED", 401)
        for topic in ("overview", "workers", "workflows"):
            async with opened(asgi, acme, topic=topic) as page:
                assert (await page.problem())["code"] == "FORBIDDEN"
        async with opened(asgi, acme, topic="run", workflow="waiter", id="globex-1") as page:
            assert (await page.problem())["code"] == "INSTANCE_NOT_FOUND"
        async with opened(asgi, acme, topic="run", workflow="waiter", id="acme-1") as page:
            assert (await page.next("run"))["id"] == "acme-1"
        async with opened(asgi, acme, topic="instances") as page:
            assert [row["id"] for row in (await page.next("reset"))["instances"]] == ["acme-1"]


@pytest.mark.above_the_store
async def test_a_stream_ends_when_the_caller_may_no_longer_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_PING_S", 0.05)
    app, _ = make_shop(authorize=BearerTokens({"r" * 20: "viewer"}))
    async with app.connect():
        asgi = app.asgi()
        async with opened(asgi, {"authorization": f"Bearer {'r' * 20}"}, topic="workers") as page:
            await page.next("changed")
            monkeypatch.setattr(BearerTokens, "_scopes_of", _refuse)
            assert (await page.next("end"))["code"] == "UNAUTHORIZED"


def _refuse(*_: Any) -> Any:
    raise Denied(401, "revoked")


@pytest.mark.above_the_store
async def test_streams_end_when_the_server_stops(shop: tuple[Holdfast, Any], api: Api) -> None:
    asgi = shop[0].asgi()
    async with opened(asgi, topic="workers") as page:
        await page.next("changed")
        asgi.state.live.close()
        assert (await page.next("end"))["code"] == "APP_CLOSED"


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"topic": "none"}, "VALIDATION_ERROR"),
        ({"topic": "run"}, "INVALID_OPTION"),
        ({"topic": "run", "workflow": "none", "id": "x"}, "WORKFLOW_NOT_FOUND"),
        ({"topic": "run", "workflow": "waiter", "id": "x"}, "INSTANCE_NOT_FOUND"),
        ({"topic": "instances", "createdAfter": "now"}, "VALIDATION_ERROR"),
        ({"topic": "instances", "cursor": "x"}, "INVALID_CURSOR"),
    ],
)
async def test_an_invalid_topic_is_refused(
    shop: tuple[Holdfast, Any], api: Api, query: dict[str, str], code: str
) -> None:
    async with opened(shop[0].asgi(), **query) as page:
        assert (await page.problem())["code"] == code
