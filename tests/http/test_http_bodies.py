"""Hostile requests: bodies, ids, paths and methods. Each is refused with a message and a code, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_api import Api, opened
from http_shop import make_shop

from holdfast import Limits

MIB = 1024 * 1024

INVALID = {
    "nothing": b"",
    "space": b"  ",
    "half": b'{"params": ',
    "no JSON": b"params=1",
    "two values": b"{} {}",
    "comment": b"{} // no",
    "single quotes": b"{'params': 1}",
    "trailing comma": b'{"params": 1,}',
    "raw control character": b'{"params": "\x01"}',
    "raw NUL": b'{"params": "\x00"}',
    "not UTF-8": b'{"params": "\xff"}',
    "raw surrogate": b'{"params": "\xed\xa0\x80"}',
    "UTF-16": '{"params": 1}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"params": 1}',
    "NaN": b'{"params": NaN}',
    "Infinity": b'{"params": [Infinity]}',
    "-Infinity": b'{"params": {"a": -Infinity}}',
    "same key twice": b'{"params": 1, "params": 2}',
    "same key twice, written differently": b'{"params": 1, "par\\u0061ms": 2}',
    "same key twice inside": b'{"params": {"a": 1, "a": 1}}',
    "number too long": b'{"params": ' + b"9" * 5000 + b"}",
    "deep": b'{"params": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a list": b"[]",
    "a string": b'"params"',
    "null": b"null",
    "a number": b"5",
    "unknown field": b'{"params": 1, "quee": "x"}',
    "field of another route": b'{"params": 1, "instances": []}',
    "id is a number": b'{"id": 5}',
    "id is null": b'{"id": null}',
    "wrong case": b'{"Params": 1}',
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_body_is_refused(api: Api, name: str) -> None:
    for path in ("/echo/instances", "/echo/instances/batch"):
        response = await api.send("POST", path, content=INVALID[name])
        assert (response.status_code, response.json()["code"]) == (400, "VALIDATION_ERROR"), response.text
        assert response.json()["issues"]
    assert await api.count("echo") == 0

    await api.create("waiter", id="w")
    assert await api.refused("POST", "/waiter/instances/w/events", content=INVALID[name]) == (400, "VALIDATION_ERROR")
    assert (await api.get("/waiter/instances/w/history"))["events"] == []


@pytest.mark.parametrize("value", ["1e999", "-1e999", "[" * 300 + "]" * 300])
async def test_a_value_that_cannot_be_stored_is_refused(api: Api, value: str) -> None:
    body = f'{{"params": {value}}}'

    assert await api.refused("POST", "/echo/instances", content=body) == (400, "NOT_SERIALIZABLE")
    assert await api.count("echo") == 0


@pytest.mark.promise("clear-errors")
@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize(
    "value",
    [
        "\0",
        "a\0b",
        "\ud800",
        "\udfff\ud800",
        "ä ö 漢 😀",
        "\u202e\u2028",
        {"\ud800\0": ["\0"]},
        2**70,
        -(10**400),
        1e308,
    ],
    ids=repr,
)
async def test_any_text_and_number_is_returned_unchanged(api: Api, value: Any) -> None:
    for as_escapes in (True, False):
        text = json.dumps({"id": f"e{as_escapes}", "params": value}, ensure_ascii=as_escapes)
        try:
            body = text.encode()
        except UnicodeEncodeError:
            continue  # a lone surrogate can only be written as an escape
        assert (await api.send("POST", "/echo/instances", content=body)).status_code == 200
        instance = await api.until("echo", f"e{as_escapes}", "complete")
        assert instance["meta"]["params"] == instance["details"]["output"] == value

    await api.create("waiter", id="w")
    await api.send("POST", "/waiter/instances/w/events", content=json.dumps({"type": "go", "payload": value}))
    assert (await api.until("waiter", "w", "complete"))["details"]["output"] == value
    assert (await api.get("/waiter/instances/w/history"))["events"][0]["payload"] == value


async def test_a_lone_surrogate_in_an_id_is_refused(api: Api) -> None:
    assert await api.refused("POST", "/echo/instances", content=b'{"id": "\\ud800"}') == (400, "INVALID_INSTANCE_ID")
    await api.create("waiter", id="w")
    event = b'{"type": "x", "id": "\\ud800"}'
    assert await api.refused("POST", "/waiter/instances/w/events", content=event) == (400, "VALIDATION_ERROR")


# --- sizes


async def test_a_body_over_the_limit_is_refused_by_its_announced_length(api: Api) -> None:
    body = json.dumps({"params": "x" * 4 * MIB})

    assert await api.refused("POST", "/echo/instances", content=body) == (413, "PAYLOAD_TOO_LARGE")
    assert await api.count("echo") == 0


async def test_a_body_over_the_limit_is_refused_while_it_is_read() -> None:
    app, _ = make_shop(limits=Limits(body=1000))
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1_000_000):
            sent += 100
            yield b" " * 100

    async with opened(app) as api:
        assert await api.refused("POST", "/echo/instances", content=endless()) == (413, "PAYLOAD_TOO_LARGE")
    assert sent <= 1200


async def test_a_value_over_the_limit_is_refused_although_its_body_is_not(api: Api) -> None:
    body = json.dumps({"params": "x" * MIB})

    assert await api.refused("POST", "/echo/instances", content=body) == (413, "PAYLOAD_TOO_LARGE")
    await api.create("waiter", id="w")
    event = json.dumps({"type": "go", "payload": "x" * MIB})
    assert await api.refused("POST", "/waiter/instances/w/events", content=event) == (413, "PAYLOAD_TOO_LARGE")
    largest = json.dumps({"params": "x" * (MIB - 2)})
    assert (await api.send("POST", "/echo/instances", content=largest)).status_code == 200


@pytest.mark.parametrize("ensure_ascii", [True, False])
async def test_the_largest_payload_is_accepted_in_any_encoding(api: Api, ensure_ascii: bool) -> None:
    for character in ("я", "\uffff", "😀"):
        text = character * ((MIB - 2) // len(character.encode()))
        body = json.dumps({"id": f"x{ord(character)}", "params": text}, ensure_ascii=ensure_ascii)
        assert (await api.send("POST", "/echo/instances", content=body.encode())).status_code == 200


async def test_an_invalid_content_length_is_ignored_or_refused(api: Api) -> None:
    for length in ("-5", "x", "9" * 100):
        response = await api.send("POST", "/echo/instances", content=b"{}", headers={"content-length": length})
        assert response.status_code in (200, 413)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.shop+json", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
async def test_a_body_has_a_json_content_type_or_none(api: Api, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"content-type": content_type}

    response = await api.send("POST", "/nothing/instances", content=b"{}", headers=headers)

    assert response.status_code == status
    if status == 415:
        assert response.json()["code"] == "UNSUPPORTED_MEDIA_TYPE"


# --- paths and methods

HOSTILE_IDS = [
    "a%2Fb", "%2e%2e", "%2e", "..%2f..%2fetc", "a%0Ab", "a%0A", "%0A", "%00", "%20", "a.b", "..;", "-x",
    "x" * 101, "x" * 10_000, "%F0%9F%98%80", "%FF", "%25", "a%3Fb", "%2F", "a;b", "*", "health", "_health",
]  # fmt: skip


@pytest.mark.parametrize("id_", HOSTILE_IDS, ids=lambda id_: id_[:20])
@pytest.mark.parametrize("suffix", ["", "/history", "/pause", "/events"])
async def test_a_hostile_id_finds_nothing(api: Api, id_: str, suffix: str) -> None:
    method = "POST" if suffix in ("/pause", "/events") else "GET"

    status, _ = await api.refused(method, f"/waiter/instances/{id_}{suffix}")

    assert status in (400, 404, 405)


@pytest.mark.parametrize("name", HOSTILE_IDS, ids=lambda name: name[:20])
async def test_a_hostile_workflow_name_finds_nothing(api: Api, name: str) -> None:
    status, code = await api.refused("GET", f"/{name}/instances")

    assert (status, code) in ((404, "WORKFLOW_NOT_FOUND"), (404, "NOT_FOUND"))


async def test_a_message_about_a_long_name_is_short(api: Api) -> None:
    response = await api.send("GET", f"/{'x' * 10_000}/instances")

    assert len(response.content) < 1500


@pytest.mark.parametrize(
    "path",
    [
        "/none", "/waiter", "/waiter/", "/waiter/instances/", "/waiter/instances//pause", "/waiter/instances/w/nope",
        "/waiter/instances/w/pause/", "/waiter/instances/w/pause%0A", "/waiter/instances%0A", "/_health%0A",
        "/_health/live%0A", "/_health/", "/_runner", "/openapi.json/", "/docs", "/redoc", "/%2e%2e/api/workflows",
        "/waiter/instances/w/history/0/1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unknown_path_is_not_found(api: Api, method: str, path: str) -> None:
    await api.create("waiter", id="w")

    assert await api.refused(method, path) == (404, "NOT_FOUND")
    assert await api.status("waiter", "w") in ("active", "waiting")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/waiter/instances/w", "DELETE, GET"),
        ("PUT", "/waiter/instances", "GET, POST"),
        ("GET", "/waiter/instances/w/pause", "POST"),
        ("OPTIONS", "/waiter/instances", "GET, POST"),
        ("PATCH", "", "GET"),
        ("POST", "/openapi.json", "GET"),
        ("GET", "/_runner/tick", "POST"),
        ("TRACE", "/_health", "GET"),
        ("QUERY", "/waiter/instances/batch", "POST"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_refused(api: Api, method: str, path: str, allow: str) -> None:
    response = await api.send(method, path)

    assert (response.status_code, response.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert response.headers["allow"] == allow


async def test_an_instance_may_be_called_batch(api: Api) -> None:
    await api.create("waiter", id="batch")

    assert (await api.get("/waiter/instances/batch"))["id"] == "batch"
    assert (await api.get("/waiter/instances/batch/history"))["runNumber"] == 0


# --- ticks


async def test_ticks_are_refused_unless_enabled(api: Api) -> None:
    assert await api.refused("POST", "/_runner/tick", json={}) == (403, "RUNNER_TICK_DISABLED")


async def test_a_tick_runs_what_is_due() -> None:
    app, _ = make_shop()
    async with app.connect():
        from http_api import client_of

        async with client_of(app.asgi(tick=True)) as http:
            api = Api(http)
            for n in range(3):
                await api.create("echo", n, id=f"e{n}")
            assert await api.post("/_runner/tick", {"maxInstances": 2}) == {"processed": 2}
            assert (await api.send("POST", "/_runner/tick")).json() == {"processed": 1}
            assert await api.post("/_runner/tick", {"maxInstances": 2.0, "maxSteps": 0}) == {"processed": 0}
            assert await api.post("/_runner/tick", {}) == {"processed": 0}
            assert await api.status("echo", "e2") == "complete"
            for body in ({"maxInstances": -1}, {"maxSteps": "1"}, {"maxSteps": True}, {"more": 1}, {"maxSteps": 2**63}):
                assert await api.refused("POST", "/_runner/tick", json=body) == (400, "VALIDATION_ERROR")
