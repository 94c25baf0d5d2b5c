"""The management commands with a server that is down, slow, of another kind or hostile."""

from __future__ import annotations

import email.utils
import json
import os
import pty
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.remote import Connection, Remote

from .running import HOLDFAST, clean_environment, holdfast, plain
from .scripted import WORKFLOWS, Response, ScriptedServer

GOOD = Response(200, WORKFLOWS)
BUSY = Response(503, {"message": "Busy", "code": "BUSY"})
SECRET = "swordfish-0815"
ACTION = ("-w", "greet", "-i", "one")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as server:
        yield server


def run(server: ScriptedServer, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return holdfast(*arguments, "--retry-delay", "0.05", HOLDFAST_BASE_URL=server.base, **env)


# --- errors


def test_a_refusal_is_one_line_on_stderr(server: ScriptedServer) -> None:
    server.will_respond(Response(409, {"message": "Instance is terminal", "code": "INSTANCE_TERMINAL"}))

    done = run(server, "instances", "pause", *ACTION)

    assert done.stderr == "Request failed: 409 Instance is terminal (INSTANCE_TERMINAL)\n"
    assert (done.returncode, done.stdout) == (1, "")


def test_issues_of_a_refusal_are_shown(server: ScriptedServer) -> None:
    issues = [{"path": ["params", "total"], "message": "not a number"}]
    server.will_respond(Response(400, {"message": "Invalid", "code": "VALIDATION_ERROR", "issues": issues}))

    done = run(server, "instances", "create", "-w", "greet")

    assert done.stderr == "Request failed: 400 Invalid (VALIDATION_ERROR); params.total: not a number\n"


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (Response(404, b"<html>not here</html>"), "404 Not Found; is http://127.0.0.1"),
        (Response(404, {"detail": "Not Found"}), "404 Not Found; is http://127.0.0.1"),
        (Response(307, b"", {"location": "/elsewhere"}), "307 Temporary Redirect; is http://127.0.0.1"),
        (Response(200, b"<html>welcome</html>"), "200, but the response is not one of a Holdfast API"),
        (Response(200, [1, 2]), "200, but the response is not one of a Holdfast API"),
        (Response(200, b"[" * 100_000), "200, but the response is not one of a Holdfast API"),
        (Response(418, {"message": ["odd"], "code": 7}), "418 I'm a Teapot"),
    ],
)
def test_a_response_of_another_server_is_reported_in_one_line(
    server: ScriptedServer, response: Response, reason: str
) -> None:
    server.will_respond(response)

    done = run(server, "workflows", "list")

    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_fields_of_unexpected_types_do_not_crash_a_command(server: ScriptedServer) -> None:
    odd = {"id": 7, "details": [1], "meta": {"why": 5, "createdAt": "soon", "currentStep": "x", "runNumber": True}}
    server.will_respond(Response(200, odd), Response(200, {"instances": [1, None, {"id": []}], "hasNextPage": "yes"}))

    assert run(server, "instances", "get", *ACTION, "--full").returncode == 0
    assert run(server, "instances", "list", "-w", "greet").returncode == 0


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("http://shop.example/api", ssl.CERT_NONE),
        ("https://shop.example/api", ssl.CERT_REQUIRED),
        ("HTTPS://shop.example/api", ssl.CERT_REQUIRED),
    ],
)
def test_certificates_are_checked_unless_the_address_is_plain_http(url: str, mode: ssl.VerifyMode) -> None:
    with Remote(Connection(url, (), timeout=1, retries=0, retry_delay=1)) as remote:
        assert remote._client._transport._pool._ssl_context.verify_mode == mode  # type: ignore[attr-defined]


def test_a_missing_server_is_reported_after_the_retries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()

    done = holdfast("workflows", "list", "-b", f"http://u:{SECRET}@127.0.0.1:{port}/x", "--retry-delay", "300ms")

    assert time.monotonic() - began > 0.3 + 0.6 + 1.2  # three retries after growing pauses
    assert (
        done.stderr == f"Request failed: no connection to http://127.0.0.1:{port}/x ([Errno 111] Connection refused)\n"
    )
    assert done.returncode == 1


# --- retries


@pytest.mark.parametrize("failure", [BUSY, Response(500, b"oops"), Response(429, b""), Response(drop=True)])
def test_a_read_request_is_repeated_after_a_transient_failure(server: ScriptedServer, failure: Response) -> None:
    server.will_respond(failure, failure, GOOD)

    done = run(server, "workflows", "list")

    assert (done.returncode, done.stderr) == (0, "")
    assert "greet" in done.stdout
    assert len(server.requests) == 3


def test_the_number_of_retries_is_limited(server: ScriptedServer) -> None:
    server.will_respond(BUSY, BUSY, BUSY)

    done = run(server, "workflows", "list", "--retries", "1")

    assert (done.returncode, done.stderr) == (1, "Request failed: 503 Busy (BUSY)\n")
    assert len(server.requests) == 2


def test_a_permanent_refusal_is_not_repeated(server: ScriptedServer) -> None:
    server.will_respond(Response(403, {"message": "No", "code": "FORBIDDEN"}), GOOD)

    assert run(server, "workflows", "list").stderr == "Request failed: 403 No (FORBIDDEN)\n"
    assert len(server.requests) == 1


def test_pauses_grow_and_retry_after_is_respected(server: ScriptedServer) -> None:
    began, soon = time.monotonic(), email.utils.formatdate(time.time() + 4, usegmt=True)
    delayed = Response(429, b"", {"retry-after": "1"}), Response(503, b"", {"retry-after": soon})
    server.will_respond(*delayed, BUSY, GOOD)

    assert run(server, "workflows", "list").returncode == 0

    first, second, third, fourth = (request.at for request in server.requests)
    assert second - first >= 1
    assert third - began >= 3  # the date has no fractions of a second
    assert fourth - third >= 0.2  # 50 ms, doubled twice


def test_a_very_long_retry_after_ends_the_command(server: ScriptedServer) -> None:
    server.will_respond(Response(429, {"message": "Later", "code": "LATER"}, {"retry-after": "86400"}))

    assert run(server, "workflows", "list").stderr == "Request failed: 429 Later (LATER)\n"


@pytest.mark.parametrize("arguments", [["create", "-w", "greet"], ["restart", *ACTION]])
@pytest.mark.parametrize("failure", [BUSY, Response(drop=True)])
def test_a_non_idempotent_request_that_may_have_taken_effect_is_not_repeated(
    server: ScriptedServer, arguments: list[str], failure: Response
) -> None:
    server.will_respond(failure, Response(200, {"ok": True, "id": "x"}))

    assert run(server, "instances", *arguments).returncode == 1
    assert len(server.requests) == 1


@pytest.mark.parametrize("arguments", [["create", "-w", "greet"], ["restart", *ACTION]])
def test_a_non_idempotent_request_that_had_no_effect_is_repeated(server: ScriptedServer, arguments: list[str]) -> None:
    server.will_respond(Response(429, b""), Response(200, {"ok": True, "id": "x"}))

    assert run(server, "instances", *arguments).returncode == 0
    assert len(server.requests) == 2


def test_a_failed_connection_is_tried_again_for_every_request() -> None:
    """The server starts while the command retries."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    base = f"http://127.0.0.1:{port}/api/workflows"
    command = [HOLDFAST, "instances", "create", "-w", "greet", "-b", base, "--retries", "100", "--retry-delay", "0.02"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=clean_environment())
    time.sleep(1)  # long enough for a first attempt in most cases; the outcome does not depend on it
    with ScriptedServer(port).running() as server:
        server.will_respond(Response(200, {"id": "new", "details": {"status": "active"}}))
        out, _ = process.communicate(timeout=300)

    assert process.returncode == 0
    assert "greet/new is created: active" in out


def log_line(message: str, *, replayed: bool) -> dict[str, object]:
    at = "2030-01-02T03:04:05.000Z"
    return {"level": "info", "category": "workflow", "message": message, "isReplay": replayed, "createdAt": at}


def test_lines_that_a_replay_wrote_again_are_shown_on_request(server: ScriptedServer) -> None:
    logs = [log_line("hello", replayed=False), log_line("hello", replayed=True)]
    history = Response(200, {"runNumber": 0, "steps": [], "events": [], "logs": logs})
    ended = Response(200, {"id": "one", "details": {"status": "complete"}, "meta": {"runNumber": 0}})
    server.will_respond(history, history, ended, history)

    once = run(server, "instances", "logs", *ACTION).stdout
    twice = run(server, "instances", "logs", *ACTION, "--include-replayed").stdout
    followed = run(server, "instances", "logs", *ACTION, "--include-replayed", "--follow").stdout

    assert once == "2030-01-02 03:04:05.000  info   workflow  hello\n"
    assert twice == once + "2030-01-02 03:04:05.000  info   workflow  (replayed)  hello\n"
    assert followed == twice


def test_a_resume_reads_the_status_first_and_is_repeated(server: ScriptedServer) -> None:
    paused = Response(200, {"id": "one", "details": {"status": "paused"}})
    server.will_respond(BUSY, paused, BUSY, Response(200, {"ok": True}))

    assert run(server, "instances", "resume", *ACTION).returncode == 0
    path = "/api/workflows/greet/instances/one"
    assert [request.path for request in server.requests] == [path, path, f"{path}/resume", f"{path}/resume"]


@pytest.mark.parametrize("action", ["pause", "terminate", "cancel"])
def test_an_idempotent_request_is_repeated(server: ScriptedServer, action: str) -> None:
    server.will_respond(BUSY, Response(200, {"ok": True}))

    assert run(server, "instances", action, *ACTION).returncode == 0
    assert [request.path for request in server.requests] == [f"/api/workflows/greet/instances/one/{action}"] * 2


def test_an_event_is_repeated_under_the_same_id(server: ScriptedServer) -> None:
    server.will_respond(Response(drop=True), Response(200, {"status": {"status": "active"}, "accepted": True}))

    assert run(server, "instances", "send-event", *ACTION, "-t", "go").returncode == 0

    first, second = (json.loads(request.body) for request in server.requests)
    assert first == second
    assert len(first["id"]) > 20


def test_a_repeated_create_that_finds_its_id_taken_gives_a_hint(server: ScriptedServer) -> None:
    exists = Response(409, {"message": "Exists", "code": "INSTANCE_ID_ALREADY_EXISTS"})
    server.will_respond(Response(drop=True), exists, exists)

    again = run(server, "instances", "create", *ACTION)
    once = run(server, "instances", "create", *ACTION)

    assert "an earlier attempt of this command may have succeeded" in again.stderr
    assert once.stderr == "Request failed: 409 Exists (INSTANCE_ID_ALREADY_EXISTS)\n"


# --- timeouts


@pytest.mark.parametrize("slow", [Response(200, WORKFLOWS, delay=30), Response(200, WORKFLOWS, drip=True)])
@pytest.mark.parametrize("timeout", ["0.3", "300 ms"])
def test_a_slow_server_ends_in_a_timeout(server: ScriptedServer, slow: Response, timeout: str) -> None:
    server.will_respond(slow, slow)

    done = run(server, "workflows", "list", "--timeout", timeout, "--retries", "1")

    assert done.stderr == f"Request failed: no response from {server.base} within 0.3 s\n"
    assert len(server.requests) == 2


def test_retries_are_reported_on_a_terminal(server: ScriptedServer) -> None:
    server.will_respond(BUSY, GOOD)
    terminal, process_side = pty.openpty()
    command = [str(HOLDFAST), "workflows", "list", "-b", server.base, "--retry-delay", "0.1"]

    subprocess.run(
        command, stderr=process_side, stdout=subprocess.DEVNULL, timeout=300, check=True, env=clean_environment()
    )

    os.close(process_side)
    assert plain(os.read(terminal, 1000).decode()).strip() == "Request failed: 503 Busy (BUSY); trying again in 0.1 s"
    os.close(terminal)


# --- headers


def test_headers_come_from_arguments_and_the_environment(server: ScriptedServer) -> None:
    server.will_respond(GOOD)
    environment = "X-One: 1; Cookie: a=1; b=x:2;\nX-Two: of the environment; X-Five: 5"

    run(server, "workflows", "list", "-H", "x-two:2", "--header", "X-Three: drei ≥ 3", HOLDFAST_HEADERS=environment)

    [request] = server.requests
    sent = {name: request.headers[name] for name in ("x-one", "cookie", "x-two", "x-three", "x-five")}
    sent["x-three"] = sent["x-three"].encode("latin-1").decode()
    assert sent == {"x-one": "1", "cookie": "a=1; b=x:2", "x-two": "2", "x-three": "drei ≥ 3", "x-five": "5"}


@pytest.mark.promise("no-secrets", store=None)
def test_values_of_headers_are_never_shown(server: ScriptedServer) -> None:
    quoted = Response(401, {"message": f"Bearer {SECRET} and {SECRET} are wrong", "code": "UNAUTHORIZED"})
    server.will_respond(quoted, Response(500, {"message": SECRET}))

    for arguments in (["--retries", "0"], ["--retries", "0"], ["--retries", "x"], ["--help"]):
        header = f"Authorization: Bearer {SECRET}"
        done = run(server, "workflows", "list", "-H", header, *arguments, HOLDFAST_HEADERS=header)
        assert SECRET not in done.stdout + done.stderr


@pytest.mark.promise("no-secrets", store=None)
@pytest.mark.parametrize(
    "header", [f"Bearer {SECRET}", f": {SECRET}", f"A b: {SECRET}", f"A: {SECRET}\nB: 1", f"A: \x1b{SECRET}"]
)
def test_an_invalid_header_is_refused_without_showing_it(server: ScriptedServer, header: str) -> None:
    done = run(server, "workflows", "list", "-H", header)

    assert done.returncode == 2
    assert "-H number 1" in done.stderr
    assert SECRET not in done.stderr
    assert server.requests == []


def test_an_invalid_header_in_the_environment_is_refused_without_showing_it(server: ScriptedServer) -> None:
    done = run(server, "workflows", "list", HOLDFAST_HEADERS=f"A: 1\n{SECRET}")

    assert done.returncode == 2
    assert "header 2 of $HOLDFAST_HEADERS" in done.stderr
    assert SECRET not in done.stderr


# --- hostile text

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]x[/bold] \u202eback\u2066 \x9b1m \r\nfaked: line \ud800"


def test_control_characters_of_a_server_do_not_reach_the_terminal(server: ScriptedServer) -> None:
    details = {"status": HOSTILE, "output": HOSTILE, "error": {"name": HOSTILE, "message": HOSTILE}}
    step = {
        "stepKey": HOSTILE,
        "name": HOSTILE,
        "type": HOSTILE,
        "status": "errored",
        "attempts": 1,
        "error": details["error"],
    }
    meta = {"why": HOSTILE, "workflowName": HOSTILE, "params": {HOSTILE: HOSTILE}, "currentStep": step, "kind": HOSTILE}
    instance = {"id": HOSTILE, "details": details, "meta": meta}
    log = {"message": HOSTILE, "level": HOSTILE, "category": HOSTILE, "stepKey": HOSTILE, "data": HOSTILE}
    event = {"type": HOSTILE, "payload": HOSTILE, "consumedByStepKey": HOSTILE}
    history = {
        "runNumber": 0,
        "steps": [step],
        "events": [event],
        "logs": [log],
        "logsHasNextPage": True,
        "logsCursor": HOSTILE,
    }
    commands = [
        (["workflows", "list"], [{"workflows": [{"name": HOSTILE}]}]),
        (["instances", "list", "-w", "x"], [{"instances": [instance], "hasNextPage": True, "nextCursor": HOSTILE}]),
        (["instances", "get", *ACTION, "--full"], [instance]),
        (["instances", "history", *ACTION, "--include-logs", "--page-size", "5"], [instance, history]),
        (["instances", "logs", *ACTION, "--page-size", "5"], [history]),
        (["instances", "create", *ACTION], [instance]),
        (["instances", "send-event", *ACTION, "-t", "go"], [{"accepted": True, "status": details}]),
    ]
    for arguments, bodies in commands:
        server.will_respond(*(Response(200, body) for body in bodies))
        piped = run(server, *arguments)
        assert piped.returncode == 0, piped
        assert_no_controls(piped.stdout)
        server.will_respond(*(Response(200, body) for body in bodies))
        assert_no_controls(plain(run(server, *arguments, FORCE_COLOR="1").stdout))  # rich's own colours taken out
        assert "[bold]x[/bold]" in piped.stdout or arguments[1] in ("create", "send-event")
    server.will_respond(Response(400, {"message": HOSTILE, "code": HOSTILE}))
    assert_no_controls(run(server, "workflows", "list").stderr)


def assert_no_controls(text: str) -> None:
    assert not {char for char in text if char < " " and char != "\n"}
    assert not {"\x7f", "\x9b", "\u202e", "\u2066"} & set(text)
    assert not any(line.startswith("faked") for line in text.splitlines())


# --- usage


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["workflows", "list", "--timeout", "soon"], "cannot be read as a duration"),
        (["workflows", "list", "--timeout", "0"], "too short"),
        (["workflows", "list", "--retries", "-1"], "--retries"),
        (["workflows", "list", "-b", "localhost:8787"], "full base"),
        (["workflows", "list", "-b", "http://127.0.0.1:1/?x=1"], "full base"),
        (["workflows", "list", "-b", "http://127.0.0.1:99999/"], "full base"),
        (["instances", "list", "-w", ".."], "cannot be a name"),
        (["instances", "list", "-w", "x", "--status", "odd"], "'odd' is not one of"),
        (["instances", "list", "-w", "x", "--page-size", "101"], "--page-size"),
        (["instances", "get", "-w", "x"], "name the instance: WORKFLOW/ID"),
        (["instances", "get", "-w", "x", "-i", ""], "cannot be a name"),
        (["instances", "history", *ACTION, "--order", "up"], "'up' is not one of"),
        (["instances", "logs", *ACTION, "--follow", "--order", "desc"], "--order"),
        (["instances", "send-event", *ACTION], "--type"),
        (["instances", "explode", *ACTION], "explode"),
    ],
)
def test_wrong_usage_exits_with_2(server: ScriptedServer, arguments: list[str], reason: str) -> None:
    done = run(server, *arguments)

    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert server.requests == []


def test_a_missing_base_url_is_reported_with_option_and_variable() -> None:
    done = holdfast("workflows", "list")

    assert done.returncode == 2
    assert "--base-url" in done.stderr
    assert "HOLDFAST_BASE_URL" in done.stderr


@pytest.mark.parametrize(
    ("text", "line", "mark"),
    [
        ("{order: 1}", "  {order: 1}", "   ^"),
        ('{\n"a": 1,\n"b": }', '  "b": }', "       ^"),
        ("[1, 2", "  [1, 2", "       ^"),
        ('{"a": NaN, "b": "NaN"}', '  {"a": NaN, "b": "NaN"}', "        ^"),
        ('{"NaN": -Infinity}', '  {"NaN": -Infinity}', "          ^"),
        ('{"温度": x}', '  {"温度": x}', "           ^"),
        ("", "  ", "  ^"),
    ],
)
def test_the_position_of_invalid_json_is_marked(server: ScriptedServer, text: str, line: str, mark: str) -> None:
    for arguments in (["create", "-w", "x", "--params", text], ["send-event", *ACTION, "-t", "go", "--payload", text]):
        done = run(server, "instances", *arguments)

        assert done.returncode == 2
        assert f"\n{line}\n{mark}\n" in done.stderr, done.stderr
    assert server.requests == []


def test_only_an_excerpt_of_long_invalid_json_is_shown(server: ScriptedServer) -> None:
    done = run(server, "instances", "create", "-w", "x", "--params", "[" + "1," * 500 + "oops" + ",1" * 500 + "]")

    assert "column 1002" in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 120
    shown, mark = done.stderr.splitlines()[-2:]
    assert shown[mark.index("^") :].startswith("oops")


@pytest.mark.parametrize("text", ["[" * 100_000, '"\udcff"'])
def test_json_that_cannot_be_decoded_is_refused(server: ScriptedServer, text: str) -> None:
    done = run(server, "instances", "create", "-w", "x", "--params", text)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_json_is_sent_as_it_was_written(server: ScriptedServer) -> None:
    text = '{"n": 12345678901234567890.10, "a": 1, "a": 2, "s": "\\ud800é"}'
    server.will_respond(Response(200, {"id": "x"}))

    run(server, "instances", "create", "-w", "a/b c", "-i", "one", "--params", text)

    [request] = server.requests
    assert request.path == "/api/workflows/a%2Fb%20c/instances"
    assert request.body.decode() == f'{{"id": "one", "params": {text}}}'
    assert request.headers["content-type"] == "application/json"


def test_limits_show_for_how_long_the_oldest_has_waited(server: ScriptedServer) -> None:
    limit = {"name": "bank", "concurrency": 5, "rate": None, "used": 5, "waiting": 2, "keys": 1, "changed": False}
    idle = limit | {"name": "idle", "used": 0, "waiting": 0, "oldestWaiting": None}
    since = (datetime.now(UTC) - timedelta(hours=3, minutes=20, seconds=30)).isoformat().replace("+00:00", "Z")
    server.responses.append(Response(200, {"limits": [limit | {"oldestWaiting": since}, idle]}))

    head, bank, other = run(server, "limits", "list").stdout.splitlines()

    assert head.split()[:5] == ["LIMIT", "CONCURRENCY", "IN_USE", "WAITING", "OLDEST"]
    assert bank.split()[:5] == ["bank", "5", "5", "2", "3h20m"]
    assert other.split()[:5] == ["idle", "5", "0", "0", "-"]


def test_the_values_of_a_limit_are_changed_and_removed(server: ScriptedServer) -> None:
    limit = {"name": "bank", "concurrency": None, "rate": None, "used": 0, "waiting": 0, "changed": True}
    weighted = limit | {"fair": True, "weights": {"acme": 2.0, "other": 0.5}}
    server.responses.extend([Response(200, limit), Response(200, limit), Response(200, weighted)])

    run(server, "limits", "set", "bank", "--no-concurrency", "--rate", "10/1 second", "--burst", "20")
    run(server, "limits", "set", "bank", "--no-rate", "--weight", "acme=2", "--weight", "other=0.5", "--reason", "test")
    fair = run(server, "limits", "set", "bank", "--fair")
    wrong = run(server, "limits", "set", "bank", "--rate", "10/1 second", "--no-rate")

    assert "acme=2, other=0.5" in fair.stdout
    assert [json.loads(request.body) for request in server.requests] == [
        {"concurrency": None, "rate": {"count": 10, "per": "1 second", "burst": 20}},
        {"rate": None, "weights": {"acme": 2.0, "other": 0.5}, "reason": "test"},
        {"fair": True},
    ]
    assert (wrong.returncode, "exclude each other" in wrong.stderr) == (2, True)
