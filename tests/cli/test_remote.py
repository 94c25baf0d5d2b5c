"""What the management commands do with a server that is away, slow, wrong or hostile."""

from __future__ import annotations

import email.utils
import json
import os
import pty
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from .running import HOLDFAST, clean_environment, holdfast, plain
from .scripted import WORKFLOWS, Answer, Scripted

GOOD = Answer(200, WORKFLOWS)
BUSY = Answer(503, {"message": "Busy", "code": "BUSY"})
SECRET = "swordfish-0815"
ACTION = ("-w", "greet", "-i", "one")


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted().running() as server:
        yield server


def run(server: Scripted, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return holdfast(*arguments, "--retry-delay", "0.05", HOLDFAST_BASE_URL=server.base, **env)


# --- errors


def test_a_refusal_is_one_line_on_stderr(server: Scripted) -> None:
    server.will_answer(Answer(409, {"message": "Instance is terminal", "code": "INSTANCE_TERMINAL"}))

    done = run(server, "instances", "pause", *ACTION)

    assert done.stderr == "Request failed: 409 Instance is terminal (INSTANCE_TERMINAL)\n"
    assert (done.returncode, done.stdout) == (1, "")


def test_issues_of_a_refusal_are_shown(server: Scripted) -> None:
    issues = [{"path": ["params", "total"], "message": "not a number"}]
    server.will_answer(Answer(400, {"message": "Invalid", "code": "VALIDATION_ERROR", "issues": issues}))

    done = run(server, "instances", "create", "-w", "greet")

    assert done.stderr == "Request failed: 400 Invalid (VALIDATION_ERROR); params.total: not a number\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(404, b"<html>not here</html>"), "404 Not Found; is http://127.0.0.1"),
        (Answer(404, {"detail": "Not Found"}), "404 Not Found; is http://127.0.0.1"),
        (Answer(307, b"", {"location": "/elsewhere"}), "307 Temporary Redirect; is http://127.0.0.1"),
        (Answer(200, b"<html>welcome</html>"), "200, but not with the answer of a Holdfast API"),
        (Answer(200, [1, 2]), "200, but not with the answer of a Holdfast API"),
        (Answer(200, b"[" * 100_000), "200, but not with the answer of a Holdfast API"),
        (Answer(418, {"message": ["odd"], "code": 7}), "418 I'm a Teapot"),
    ],
)
def test_a_server_that_is_not_ours_is_one_line_too(server: Scripted, answer: Answer, reason: str) -> None:
    server.will_answer(answer)

    done = run(server, "workflows", "list")

    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_answers_with_fields_of_other_types_break_nothing(server: Scripted) -> None:
    odd = {"id": 7, "details": [1], "meta": {"why": 5, "createdAt": "soon", "currentStep": "x", "runNumber": True}}
    server.will_answer(Answer(200, odd), Answer(200, {"instances": [1, None, {"id": []}], "hasNextPage": "yes"}))

    assert run(server, "instances", "get", *ACTION, "--full").returncode == 0
    assert run(server, "instances", "list", "-w", "greet").returncode == 0


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()

    done = holdfast("workflows", "list", "-b", f"http://u:{SECRET}@127.0.0.1:{port}/x", "--retry-delay", "300ms")

    assert time.monotonic() - began > 0.3 + 0.6 + 1.2  # it tried again, three times, after growing pauses
    assert (
        done.stderr == f"Request failed: no connection to http://127.0.0.1:{port}/x ([Errno 111] Connection refused)\n"
    )
    assert done.returncode == 1


# --- repeating


@pytest.mark.parametrize("trouble", [BUSY, Answer(500, b"oops"), Answer(429, b""), Answer(drop=True)])
def test_what_reads_is_repeated(server: Scripted, trouble: Answer) -> None:
    server.will_answer(trouble, trouble, GOOD)

    done = run(server, "workflows", "list")

    assert (done.returncode, done.stderr) == (0, "")
    assert "greet" in done.stdout
    assert len(server.asked) == 3


def test_retries_come_to_an_end(server: Scripted) -> None:
    server.will_answer(BUSY, BUSY, BUSY)

    done = run(server, "workflows", "list", "--retries", "1")

    assert (done.returncode, done.stderr) == (1, "Request failed: 503 Busy (BUSY)\n")
    assert len(server.asked) == 2


def test_what_is_refused_for_good_is_not_repeated(server: Scripted) -> None:
    server.will_answer(Answer(403, {"message": "No", "code": "FORBIDDEN"}), GOOD)

    assert run(server, "workflows", "list").stderr == "Request failed: 403 No (FORBIDDEN)\n"
    assert len(server.asked) == 1


def test_pauses_grow_and_retry_after_is_waited_for(server: Scripted) -> None:
    began, soon = time.monotonic(), email.utils.formatdate(time.time() + 4, usegmt=True)
    told = Answer(429, b"", {"retry-after": "1"}), Answer(503, b"", {"retry-after": soon})
    server.will_answer(*told, BUSY, GOOD)

    assert run(server, "workflows", "list").returncode == 0

    first, second, third, fourth = (asked.at for asked in server.asked)
    assert second - first >= 1
    assert third - began >= 3  # the date has no fractions of a second
    assert fourth - third >= 0.2  # 50 ms, doubled twice


def test_a_very_long_retry_after_is_not_waited_for(server: Scripted) -> None:
    server.will_answer(Answer(429, {"message": "Later", "code": "LATER"}, {"retry-after": "86400"}))

    assert run(server, "workflows", "list").stderr == "Request failed: 429 Later (LATER)\n"


@pytest.mark.parametrize("arguments", [["create", "-w", "greet"], ["restart", *ACTION]])
@pytest.mark.parametrize("trouble", [BUSY, Answer(drop=True)])
def test_what_must_not_happen_twice_is_not_repeated_if_it_may_have(
    server: Scripted, arguments: list[str], trouble: Answer
) -> None:
    server.will_answer(trouble, Answer(200, {"ok": True, "id": "x"}))

    assert run(server, "instances", *arguments).returncode == 1
    assert len(server.asked) == 1


@pytest.mark.parametrize("arguments", [["create", "-w", "greet"], ["restart", *ACTION]])
def test_it_is_repeated_if_it_certainly_did_not(server: Scripted, arguments: list[str]) -> None:
    server.will_answer(Answer(429, b""), Answer(200, {"ok": True, "id": "x"}))

    assert run(server, "instances", *arguments).returncode == 0
    assert len(server.asked) == 2


def test_a_connection_that_never_was_is_tried_again_for_every_request() -> None:
    """The server starts while the command is already trying."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    base = f"http://127.0.0.1:{port}/api/workflows"
    command = [HOLDFAST, "instances", "create", "-w", "greet", "-b", base, "--retries", "100", "--retry-delay", "0.02"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=clean_environment())
    time.sleep(1)  # long enough for a first attempt in most cases; the outcome does not depend on it
    with Scripted(port).running() as server:
        server.will_answer(Answer(200, {"id": "new", "details": {"status": "active"}}))
        out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "greet/new is created: active" in out


def logged(message: str, *, replayed: bool) -> dict[str, object]:
    at = "2030-01-02T03:04:05.000Z"
    return {"level": "info", "category": "workflow", "message": message, "isReplay": replayed, "createdAt": at}


def test_lines_that_a_replay_wrote_again_are_shown_on_request(server: Scripted) -> None:
    logs = [logged("hello", replayed=False), logged("hello", replayed=True)]
    history = Answer(200, {"runNumber": 0, "steps": [], "events": [], "logs": logs})
    ended = Answer(200, {"id": "one", "details": {"status": "complete"}, "meta": {"runNumber": 0}})
    server.will_answer(history, history, ended, history)

    once = run(server, "instances", "logs", *ACTION).stdout
    twice = run(server, "instances", "logs", *ACTION, "--include-replayed").stdout
    followed = run(server, "instances", "logs", *ACTION, "--include-replayed", "--follow").stdout

    assert once == "2030-01-02 03:04:05.000  info   workflow  hello\n"
    assert twice == once + "2030-01-02 03:04:05.000  info   workflow  (replayed)  hello\n"
    assert followed == twice


def test_a_resume_looks_at_the_status_and_may_be_repeated(server: Scripted) -> None:
    paused = Answer(200, {"id": "one", "details": {"status": "paused"}})
    server.will_answer(BUSY, paused, BUSY, Answer(200, {"ok": True}))

    assert run(server, "instances", "resume", *ACTION).returncode == 0
    one = "/api/workflows/greet/instances/one"
    assert [asked.path for asked in server.asked] == [one, one, f"{one}/resume", f"{one}/resume"]


@pytest.mark.parametrize("action", ["pause", "terminate", "cancel"])
def test_what_may_happen_twice_is_repeated(server: Scripted, action: str) -> None:
    server.will_answer(BUSY, Answer(200, {"ok": True}))

    assert run(server, "instances", action, *ACTION).returncode == 0
    assert [asked.path for asked in server.asked] == [f"/api/workflows/greet/instances/one/{action}"] * 2


def test_an_event_is_repeated_under_the_same_id(server: Scripted) -> None:
    server.will_answer(Answer(drop=True), Answer(200, {"status": {"status": "active"}, "accepted": True}))

    assert run(server, "instances", "send-event", *ACTION, "-t", "go").returncode == 0

    first, second = (json.loads(asked.body) for asked in server.asked)
    assert first == second
    assert len(first["id"]) > 20


def test_a_repeated_create_that_meets_itself_says_so(server: Scripted) -> None:
    exists = Answer(409, {"message": "Exists", "code": "INSTANCE_ID_ALREADY_EXISTS"})
    server.will_answer(Answer(drop=True), exists, exists)

    again = run(server, "instances", "create", *ACTION)
    once = run(server, "instances", "create", *ACTION)

    assert "an earlier attempt of this command may have done it" in again.stderr
    assert once.stderr == "Request failed: 409 Exists (INSTANCE_ID_ALREADY_EXISTS)\n"


# --- time


@pytest.mark.parametrize("slow", [Answer(200, WORKFLOWS, delay=30), Answer(200, WORKFLOWS, drip=True)])
@pytest.mark.parametrize("timeout", ["0.3", "300 ms"])
def test_a_slow_server_is_not_waited_for(server: Scripted, slow: Answer, timeout: str) -> None:
    server.will_answer(slow, slow)

    done = run(server, "workflows", "list", "--timeout", timeout, "--retries", "1")

    assert done.stderr == f"Request failed: no answer from {server.base} within 0.3 s\n"
    assert len(server.asked) == 2


def test_someone_who_watches_is_told_of_retries(server: Scripted) -> None:
    server.will_answer(BUSY, GOOD)
    terminal, its_side = pty.openpty()
    command = [str(HOLDFAST), "workflows", "list", "-b", server.base, "--retry-delay", "0.1"]

    subprocess.run(command, stderr=its_side, stdout=subprocess.DEVNULL, timeout=60, check=True, env=clean_environment())

    os.close(its_side)
    assert plain(os.read(terminal, 1000).decode()).strip() == "Request failed: 503 Busy (BUSY); trying again in 0.1 s"
    os.close(terminal)


# --- headers


def test_headers_come_from_arguments_and_the_environment(server: Scripted) -> None:
    server.will_answer(GOOD)
    environment = "X-One: 1; Cookie: a=1; b=x:2;\nX-Two: of the environment; X-Five: 5"

    run(server, "workflows", "list", "-H", "x-two:2", "--header", "X-Three: drei ≥ 3", HOLDFAST_HEADERS=environment)

    [asked] = server.asked
    sent = {name: asked.headers[name] for name in ("x-one", "cookie", "x-two", "x-three", "x-five")}
    sent["x-three"] = sent["x-three"].encode("latin-1").decode()
    assert sent == {"x-one": "1", "cookie": "a=1; b=x:2", "x-two": "2", "x-three": "drei ≥ 3", "x-five": "5"}


def test_values_of_headers_are_never_shown(server: Scripted) -> None:
    quoted = Answer(401, {"message": f"Bearer {SECRET} and {SECRET} are wrong", "code": "UNAUTHORIZED"})
    server.will_answer(quoted, Answer(500, {"message": SECRET}))

    for arguments in (["--retries", "0"], ["--retries", "0"], ["--retries", "x"], ["--help"]):
        header = f"Authorization: Bearer {SECRET}"
        done = run(server, "workflows", "list", "-H", header, *arguments, HOLDFAST_HEADERS=header)
        assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "header", [f"Bearer {SECRET}", f": {SECRET}", f"A b: {SECRET}", f"A: {SECRET}\nB: 1", f"A: \x1b{SECRET}"]
)
def test_a_wrong_header_is_refused_without_showing_it(server: Scripted, header: str) -> None:
    done = run(server, "workflows", "list", "-H", header)

    assert done.returncode == 2
    assert "-H number 1" in done.stderr
    assert SECRET not in done.stderr
    assert server.asked == []


def test_a_wrong_header_in_the_environment_is_refused_without_showing_it(server: Scripted) -> None:
    done = run(server, "workflows", "list", HOLDFAST_HEADERS=f"A: 1\n{SECRET}")

    assert done.returncode == 2
    assert "header 2 of $HOLDFAST_HEADERS" in done.stderr
    assert SECRET not in done.stderr


# --- hostile text

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]x[/bold] \u202eback\u2066 \x9b1m \r\nfaked: line \ud800"


def test_text_of_a_server_cannot_reach_the_terminal(server: Scripted) -> None:
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
    for arguments, answers in commands:
        server.will_answer(*(Answer(200, answer) for answer in answers))
        piped = run(server, *arguments)
        assert piped.returncode == 0, piped
        no_controls(piped.stdout)
        server.will_answer(*(Answer(200, answer) for answer in answers))
        no_controls(plain(run(server, *arguments, FORCE_COLOR="1").stdout))  # rich's own colours taken out
        assert "[bold]x[/bold]" in piped.stdout or arguments[1] in ("create", "send-event")
    server.will_answer(Answer(400, {"message": HOSTILE, "code": HOSTILE}))
    no_controls(run(server, "workflows", "list").stderr)


def no_controls(text: str) -> None:
    assert not {sign for sign in text if sign < " " and sign != "\n"}
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
        (["instances", "list"], "--workflow"),
        (["instances", "list", "-w", ".."], "cannot be a name"),
        (["instances", "list", "-w", "x", "--status", "odd"], "'odd' is not one of"),
        (["instances", "list", "-w", "x", "--page-size", "101"], "--page-size"),
        (["instances", "get", "-w", "x"], "--id"),
        (["instances", "get", "-w", "x", "-i", ""], "cannot be a name"),
        (["instances", "history", *ACTION, "--order", "up"], "'up' is not one of"),
        (["instances", "logs", *ACTION, "--follow", "--order", "desc"], "--order"),
        (["instances", "send-event", *ACTION], "--type"),
        (["instances", "explode", *ACTION], "explode"),
    ],
)
def test_wrong_usage_ends_with_2(server: Scripted, arguments: list[str], reason: str) -> None:
    done = run(server, *arguments)

    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert server.asked == []


def test_without_a_base_url_it_says_where_to_give_one() -> None:
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
def test_broken_json_is_pointed_at(server: Scripted, text: str, line: str, mark: str) -> None:
    for arguments in (["create", "-w", "x", "--params", text], ["send-event", *ACTION, "-t", "go", "--payload", text]):
        done = run(server, "instances", *arguments)

        assert done.returncode == 2
        assert f"\n{line}\n{mark}\n" in done.stderr, done.stderr
    assert server.asked == []


def test_of_long_json_only_the_place_is_shown(server: Scripted) -> None:
    done = run(server, "instances", "create", "-w", "x", "--params", "[" + "1," * 500 + "oops" + ",1" * 500 + "]")

    assert "column 1002" in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 120
    shown, mark = done.stderr.splitlines()[-2:]
    assert shown[mark.index("^") :].startswith("oops")


@pytest.mark.parametrize("text", ["[" * 100_000, '"\udcff"'])
def test_json_that_cannot_be_is_refused(server: Scripted, text: str) -> None:
    done = run(server, "instances", "create", "-w", "x", "--params", text)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_json_is_sent_as_it_was_written(server: Scripted) -> None:
    text = '{"n": 12345678901234567890.10, "a": 1, "a": 2, "s": "\\ud800é"}'
    server.will_answer(Answer(200, {"id": "x"}))

    run(server, "instances", "create", "-w", "a/b c", "-i", "one", "--params", text)

    [asked] = server.asked
    assert asked.path == "/api/workflows/a%2Fb%20c/instances"
    assert asked.body.decode() == f'{{"id": "one", "params": {text}}}'
    assert asked.headers["content-type"] == "application/json"
