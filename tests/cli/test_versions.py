"""``holdfast versions`` and ``holdfast instances move``, with a server that sends prepared responses."""

from __future__ import annotations

import json

from .running import holdfast
from .scripted import Response, ScriptedServer


def test_versions_shows_a_table() -> None:
    body = {
        "versions": [
            {"version": "v1", "openRuns": 12, "workers": [], "alive": False},
            {"version": None, "openRuns": 1, "workers": ["w"], "alive": True},
        ]
    }
    with ScriptedServer().running() as server:
        server.responses.append(Response(body=body))
        done = holdfast("versions", "-b", server.base)

    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["VERSION", "OPEN_RUNS", "WORKER_ALIVE"],
        ["v1", "12", "no"],
        ["-", "1", "yes"],
    ]


def test_move_sends_the_version() -> None:
    with ScriptedServer().running() as server:
        server.responses.append(Response(body={"ok": True}))
        done = holdfast("instances", "move", "-w", "fulfil", "-i", "o-1", "--to", "v2", "-b", server.base)
        [request] = server.requests

    assert (done.returncode, done.stdout) == (0, "fulfil/o-1: moved to v2.\n")
    assert (request.path, json.loads(request.body)) == (
        "/api/workflows/fulfil/instances/o-1/move",
        {"version": "v2"},
    )
