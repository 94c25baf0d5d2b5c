"""``holdfast instances create`` with start policies, and ``create-many``, with a server of prepared responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli import create_many
from holdfast.cli.main import cli

from .scripted import Response, ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as server:
        yield server


def run(server: ScriptedServer, *words: str, lines: str = "", responses: tuple[Response, ...] = ()) -> Any:
    server.will_respond(*responses)
    return CliRunner().invoke(cli, ["instances", *words, "-b", server.base, "--retries", "1"], input=lines)


def created(*ids: str) -> Response:
    return Response(200, {"instances": [{"id": name} for name in ids]})


def test_the_lines_of_a_file_are_started_in_batches(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_many, "_MAX_INSTANCES", 2)
    lines = '{"id": "a", "params": 1.10}\n\n{"id": "b"}\n{"id": "c", "queue": "slow"}\n'

    done = run(server, "create-many", "-w", "f", "-", lines=lines, responses=(created("a", "b"), created()))

    assert (done.exit_code, done.stdout) == (0, "2 instances are created; 1 existed already.\n")
    assert [request.body.decode() for request in server.requests] == [
        '{"instances": [{"id": "a", "params": 1.10}, {"id": "b"}]}',
        '{"instances": [{"id": "c", "queue": "slow"}]}',
    ]


def test_long_lines_are_sent_in_requests_of_a_limited_size(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_many, "_MAX_CHARACTERS", 30)
    lines = "".join(f'{{"id": "{name}", "params": "12345"}}\n' for name in "abc")

    run(server, "create-many", "-w", "f", "-", lines=lines, responses=(created(),) * 3)

    assert len(server.requests) == 3


@pytest.mark.parametrize("line", ["{", '"a"', "[]", '{"params": 1}', '{"id": 7}', '{"id": "b"'])
def test_a_line_that_is_not_an_instance_is_named(server: ScriptedServer, line: str) -> None:
    done = run(server, "create-many", "-w", "f", "-", lines=f'{{"id": "a"}}\n{line}\n')

    assert (done.exit_code, server.requests) == (2, [])
    assert "line 2 is not" in done.output


def test_the_lines_of_a_refused_request_are_named(server: ScriptedServer) -> None:
    refusal = Response(400, {"message": "Invalid", "code": "VALIDATION_ERROR"})

    done = run(server, "create-many", "-w", "f", "-", lines='{"id": "a"}\n', responses=(refusal,))

    assert (done.exit_code, done.output) == (1, "lines 1 to 1: Request failed: 400 Invalid (VALIDATION_ERROR)\n")


@pytest.mark.parametrize(("option", "requests"), [("", 2), (', "onReuse": "allow"', 1)])
def test_a_request_that_is_not_safe_to_repeat_is_sent_once(server: ScriptedServer, option: str, requests: int) -> None:
    lines = f'{{"id": "a"{option}}}\n'

    run(server, "create-many", "-w", "f", "-", lines=lines, responses=(Response(drop=True), created("a")))

    assert len(server.requests) == requests


def test_start_policies_have_all_their_fields(server: ScriptedServer) -> None:
    answer = Response(200, {"id": "x", "details": {"status": "active"}})

    run(server, "create", "-w", "f", "--dedupe", "k", "--dedupe-period", "1h", responses=(answer,))
    run(server, "create", "-w", "f", "--debounce", "5s", "--debounce-max-wait", "1m", "--key", "k", responses=(answer,))
    alone = run(server, "create", "-w", "f", "--dedupe-period", "1h")

    assert [json.loads(request.body) for request in server.requests] == [
        {"dedupe": {"key": "k", "period": 3600}},
        {"key": "k", "debounce": {"wait": 5, "maxWait": 60}},
    ]
    assert alone.exit_code == 2


def test_options_of_a_group_before_its_command_are_refused() -> None:
    done = CliRunner().invoke(cli, ["queues", "-b", "http://127.0.0.1:9/x", "pause", "bulk"])

    assert done.exit_code == 2
    assert "give --base-url after" in done.output
