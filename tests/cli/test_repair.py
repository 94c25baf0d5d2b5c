"""``holdfast instances retry``, ``fork``, ``resolve``, ``delete`` and filters, with a server of prepared responses."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from .running import holdfast
from .scripted import Response, ScriptedServer

BASE = "/api/workflows"


def _run(*words: str, responses: list[Any]) -> tuple[Any, list[tuple[str, str, Any]]]:
    with ScriptedServer().running() as server:
        server.responses.extend(Response(body=body) for body in responses)
        done = holdfast("instances", *words, "-b", server.base)
        sent = [(one.method, one.path, json.loads(one.body) if one.body else None) for one in server.requests]
    return done, sent


def test_single_instances_are_repaired() -> None:
    cases = [
        (["retry", "fulfil/o-1", "--reason", "x"], {"ok": True}, "retry", {"reason": "x"}, "fulfil/o-1: continues.\n"),
        (
            ["resolve", "fulfil/o-1", "--step", "pay", "--error", "no"], {"ok": True},
            "resolve", {"stepKey": "pay", "error": "no"}, "fulfil/o-1: step pay is resolved.\n",
        ),
        (
            ["fork", "fulfil/o-1", "--before", "pay", "--new-id", "f", "--outputs", '{"a": 1}'],
            {"id": "f", "details": {"status": "active"}},
            "fork", {"before": "pay", "id": "f", "outputs": {"a": 1}}, "f",
        ),
    ]  # fmt: skip
    for words, response, route, body, output in cases:
        done, sent = _run(*words, responses=[response])
        assert done.returncode == 0, done.stderr
        assert sent == [("POST", f"{BASE}/fulfil/instances/o-1/{route}", body)]
        assert output in done.stdout


def test_named_instances_are_deleted() -> None:
    done, sent = _run("delete", "fulfil/o-1", "pay/p-1", "--reason", "x", responses=[{"ok": True}] * 2)

    assert done.stdout == "fulfil/o-1: deleted.\npay/p-1: deleted.\n", done.stderr
    assert sent == [
        ("DELETE", f"{BASE}/fulfil/instances/o-1", {"reason": "x"}),
        ("DELETE", f"{BASE}/pay/instances/p-1", {"reason": "x"}),
    ]


def test_a_dry_run_shows_the_count_and_a_sample() -> None:
    listed = {
        "id": "o-1", "workflowName": "fulfil", "details": {"status": "errored"}, "createdAt": "2026-01-01T00:00:00.000Z"
    }  # fmt: skip

    done, [(method, path, body)] = _run(
        "retry", "--status", "errored", "--error", "KeyError", "--since", "1h", "--dry-run",
        responses=[{"count": 12, "sample": [listed]}],
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("retry would be applied to 12 instances.\n")
    assert "\nfulfil/o-1  errored " in done.stdout
    assert (method, path, body["action"], body["dryRun"]) == ("POST", f"{BASE}/_bulk", "retry", True)
    assert {**body["filter"], "endedAfter": ""} == {"status": "errored", "error": "KeyError", "endedAfter": ""}


@pytest.mark.parametrize("action", ["pause", "resume", "restart", "terminate", "cancel", "retry", "delete"])
def test_every_action_takes_a_filter_and_shows_its_result(action: str) -> None:
    running = {"id": "j", "status": "running"}
    ended = {"status": "complete", "total": 3, "done": 2, "failed": 0, "skipped": 1, "errors": []}

    done, sent = _run(
        action, "-w", "fulfil", "--id-prefix", "t-", "--rate", "5", responses=[{"id": "j"}, running, ended]
    )

    assert (done.returncode, done.stdout) == (0, f"{action}: 2 done, 0 failed, 1 skipped of 3 instances.\n")
    assert sent[0][2] == {
        "action": action, "filter": {"workflow": "fulfil", "idPrefix": "t-"}, "dryRun": False, "rate": 5.0,
    }  # fmt: skip
    assert [path for _, path, _ in sent[1:]] == [f"{BASE}/_bulk/j"] * 2


def test_a_fork_takes_a_filter() -> None:
    ended = {"status": "complete", "total": 1, "done": 1, "failed": 0, "skipped": 0, "errors": []}

    done, sent = _run(
        "fork", "--error", "KeyError", "--before", "pay", "--suffix", "-x", "--outputs", '{"a": 1}',
        responses=[{"id": "j"}, ended],
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "fork: 1 done, 0 failed, 0 skipped of 1 instance.\n"), done.stderr
    assert sent[0][2]["arguments"] == {"before": "pay", "suffix": "-x", "outputs": {"a": 1}}


@pytest.mark.parametrize(
    "words",
    [
        ["fork", "fulfil/o-1", "fulfil/o-2", "--before", "s"],
        ["fork", "fulfil/o-1", "--before", "s", "--suffix", "-x"],
        ["fork", "--status", "errored", "--before", "s", "--new-id", "x"],
        ["retry"],
        ["retry", "fulfil/o-1", "--status", "errored"],
        ["retry", "-i", "o-1"],
        ["resolve", "fulfil/o-1", "--step", "s"],
        ["retry", "--ended-after", "yesterday"],
    ],
    ids=" ".join,
)
def test_an_unclear_selection_is_a_usage_error(words: list[str]) -> None:
    done, sent = _run(*words, responses=[])

    assert (done.returncode, sent) == (2, [])


def test_a_list_takes_the_fields_of_a_filter() -> None:
    done, [(_, path, _)] = _run(
        "list", "-w", "fulfil", "--error", "KeyError", "--since", "1h", "--queue", "slow", "--id-prefix", "a",
        responses=[{"instances": [], "hasNextPage": False}],
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert path.startswith(f"{BASE}/_instances?")
    for part in ("error=KeyError", "workflow=fulfil", "queue=slow", "idPrefix=a", "endedAfter="):
        assert part in path


def test_a_list_takes_times_and_the_hint_for_its_next_page_repeats_them() -> None:
    times = ["--created-after", "2026-01-01", "--ended-before", "2026-02-01T00:00:00+01:00"]

    listed = {
        "id": "o-1",
        "workflowName": "f",
        "details": {"status": "active"},
        "createdAt": "2026-01-01T00:00:00.000Z",
    }

    page = {"instances": [listed], "hasNextPage": True, "nextCursor": "c"}
    done, [(_, path, _)] = _run("list", *times, responses=[page])

    assert done.returncode == 0, done.stderr
    query = {"createdAfter": "2026-01-01T00:00:00+00:00", "endedBefore": "2026-02-01T00:00:00+01:00"}
    assert path == f"{BASE}/_instances?{urlencode(query)}"
    assert f"--created-after {query['createdAfter']} --ended-before {query['endedBefore']}" in done.stdout


def test_the_attributes_of_a_filter_are_compared_as_those_of_a_list() -> None:
    done, [(_, _, body)] = _run(
        "retry", "--search", "total=>=100", "--search", "n=5", "--search", 'code="007"', "--search", "vip=true",
        "--search", "team=a", "--dry-run",
        responses=[{"count": 0, "sample": []}],
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert body["filter"]["search"] == {"total": [">=", 100], "n": 5, "code": "007", "vip": True, "team": "a"}


def test_the_resume_of_an_errored_run_names_the_retry() -> None:
    done, sent = _run("resume", "fulfil/o-1", responses=[{"id": "o-1", "details": {"status": "errored"}}])

    assert (done.returncode, len(sent)) == (1, 1)
    assert done.stderr == (
        "fulfil/o-1 has ended (errored) and cannot be resumed; "
        "use retry to continue from its history, or restart to run it again\n"
    )
