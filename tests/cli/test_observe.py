"""The commands that show the whole system, the form workflow/id, and the start options, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .live import LiveServer
from .running import HOLDFAST, clean_environment


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("live"))
    live.start()
    yield live
    assert live.stop() == 0


def test_an_instance_is_addressed_in_the_form_that_lists_print(live: LiveServer) -> None:
    live.create("fulfil", "a-1", '{"id": "a-1", "total": 125}')
    live.until("fulfil", "a-1", "approval")

    listed = live.ok("list", "--wide")
    [address] = [line.split()[0] for line in listed.splitlines() if "a-1" in line]
    assert address == "fulfil/a-1"
    assert live.ok("get", address).splitlines()[:2] == live.ok("get", "-w", "fulfil", "-i", "a-1").splitlines()[:2]
    assert "approval" in live.ok("history", address)
    assert "fulfil/a-1" in live.ok("pause", address)
    assert "fulfil/a-1" in live.ok("resume", address)
    live.ok("send-event", address, "-t", "approval", "--payload", '{"by": "ann"}')
    live.ok("logs", address)


def test_events_are_sent_to_all_instances_of_a_filter(live: LiveServer) -> None:
    for name in ("e-1", "e-2"):
        live.create("fulfil", name, f'{{"id": "{name}", "total": 1}}')
        live.until("fulfil", name, "approval")

    counted = live.ok("send-event", "--id-prefix", "e-", "-t", "approval", "--payload", '{"by": "ann"}', "--dry-run")
    sent = live.ok("send-event", "--id-prefix", "e-", "-t", "approval", "--payload", '{"by": "ann"}')

    assert counted.startswith("sendEvent would be applied to 2 instances.")
    assert sent == "sendEvent: 2 done, 0 failed, 0 skipped of 2 instances.\n"
    for name in ("e-1", "e-2"):
        live.until("fulfil", name, "complete")


def test_audit_records_of_one_instance_and_of_all_are_listed(live: LiveServer) -> None:
    live.create("fulfil", "au-1", '{"id": "au-1", "total": 1}')
    live.ok("terminate", "fulfil/au-1")
    live.ok("restart", "fulfil/au-1")
    live.ok("move", "--id-prefix", "au-", "--to", "v9")

    own = live.run("audit", "fulfil/au-1").stdout.splitlines()
    every = live.run("audit", "--limit", "2").stdout.splitlines()

    assert [line.split()[1:5] for line in own[1:]] == [
        [action, "-", "fulfil/au-1", "done"] for action in ("move", "restart", "terminate")
    ]
    assert every[0].split() == ["AT_UTC", "ACTION", "ACTOR", "TARGET", "OUTCOME", "REASON"]
    assert len(every) == 3


def test_several_instances_of_several_workflows_are_addressed_at_once(live: LiveServer) -> None:
    live.create("fulfil", "m-1", '{"id": "m-1", "total": 1}')
    live.create("stubborn", "m-2")

    done = live.ok("terminate", "fulfil/m-1", "stubborn/m-2")

    assert [line.split()[0].rstrip(":") for line in done.splitlines()] == ["fulfil/m-1", "stubborn/m-2"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["get"], "name the instance"),
        (["get", "-w", "fulfil"], "name the instance"),
        (["get", "fulfil"], "not of the form WORKFLOW/ID"),
        (["get", "fulfil/a/b"], "not of the form WORKFLOW/ID"),
        (["get", "fulfil/a", "-w", "fulfil"], "not both"),
        (["get", "fulfil/a", "fulfil/b"], "one instance"),
    ],
)
def test_an_incomplete_address_is_wrong_usage(live: LiveServer, words: list[str], problem: str) -> None:
    done = live.run("instances", *words)

    assert done.returncode == 2
    assert problem in " ".join(done.stderr.split())


def test_lists_of_all_workflows_have_the_same_columns(live: LiveServer) -> None:
    live.create("refuses", "l-1")
    live.until("refuses", "l-1", "errored")

    lines = [line.split() for line in live.ok("list", "--wide", "--page-size", "50").splitlines()]

    assert lines[0] == ["INSTANCE", "STATUS", "CREATED_UTC", "KIND", "ERROR"]
    [row] = [line for line in lines if line[0] == "refuses/l-1"]
    assert (row[1], row[3]) == ("errored", "workflow")
    assert all(len(line) >= 5 for line in lines)
    assert live.ok("list").splitlines()[0].split()[0] == "INSTANCE"


def test_an_instance_is_created_with_all_options(live: LiveServer) -> None:
    live.ok(
        "create", "-w", "greet", "-i", "c-1", "--params", '"ann"', "--queue", "night", "--priority", "5",
        "--delay", "8h", "--execution-timeout", "2 days", "--run-timeout", "1d", "--task-timeout", "10",
        "--retry", '{"limit": 2}', "--search", "team=a", "--search", "n=5", "--memo", '{"note": 1}',
        "--summary", "a greeting",
    )  # fmt: skip

    shown = live.ok("get", "greet/c-1")
    assert "waiting" in shown
    assert "a greeting" in shown
    assert "c-1" in live.ok("list", "-w", "greet", "--search", "team=a", "--search", "n=5")
    again = live.run("instances", "create", "-w", "greet", "-i", "c-1", "--params", '"ann"')
    assert again.returncode == 1
    live.ok("create", "-w", "greet", "-i", "c-1", "--params", '"ann"', "--on-conflict", "use_existing")
    live.ok("terminate", "greet/c-1")
    live.ok("create", "-w", "greet", "-i", "c-1", "--params", '"ann"', "--on-reuse", "allow", "--start-at",
            "2199-01-01T00:00:00Z")  # fmt: skip
    assert live.run("instances", "create", "-w", "greet", "--delay", "soon").returncode == 2


def test_an_instance_is_created_with_context_and_messages_and_retried_by_a_start(live: LiveServer) -> None:
    order = '{"id": "start-1", "total": 1}'
    message = 'approval={"by": "ann"}'
    live.ok(
        "create", "-w", "fulfil", "-i", "start-1", "--params", order, "--message", message, "--context", '{"team": "a"}'
    )
    live.until("fulfil", "start-1", "complete")
    live.create("refuses", "start-2")
    live.until("refuses", "start-2", "errored")

    live.ok("create", "-w", "refuses", "-i", "start-2", "--on-reuse", "retry_if_failed")

    assert "retry" in live.run("audit", "refuses/start-2").stdout
    assert live.run("instances", "create", "-w", "fulfil", "--message", "=1").returncode == 2


def test_workers_queues_stats_and_top_show_the_system(live: LiveServer) -> None:
    live.create("refuses", "s-1")
    live.until("refuses", "s-1", "errored")
    live.ok("create", "-w", "greet", "-i", "s-2", "--params", '"ann"', "--queue", "idle")

    workers = [line.split() for line in live.run("workers").stdout.splitlines()]
    assert workers[0] == ["WORKER", "STATE", "QUEUES", "HELD", "CONCURRENCY", "VERSION"]
    assert [row[1:3] for row in workers[1:]] == [["alive", "default"]]
    assert live.run("workers", "--wide").stdout.splitlines()[0].split()[-1] == "SEEN_UTC"

    queues = {row[0]: row for row in (line.split() for line in live.run("queues").stdout.splitlines())}
    assert queues["QUEUE"] == ["QUEUE", "DUE", "RUNNING", "WORKERS", "OLDEST", "STATE"]
    assert queues["idle"][1:4] == ["1", "0", "0"]
    assert queues["default"][3] == "1"

    stats = live.run("stats").stdout
    assert "in the last minute" in stats
    assert "Errors of the last hour" in stats
    assert any(line.split()[:1] == ["refuses"] for line in stats.splitlines())
    top = live.run("top", "--once").stdout
    assert "Queues" in top
    assert "Workers" in top


def test_the_server_has_metrics_at_its_root(live: LiveServer) -> None:
    with urllib.request.urlopen(live.base.removesuffix("/api/workflows") + "/metrics", timeout=300) as response:
        text = response.read().decode()

    assert "holdfast_workers_alive 1" in text


SHOP = """
import logging
from holdfast import Context, Holdfast
app = Holdfast("sqlite:///shop.db")

@app.step
async def charge() -> None:
    logging.getLogger("shop").info("charged")

@app.workflow
async def order(ctx: Context) -> None:
    await charge()
"""


def read_metrics(port: int) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as response:
                return str(response.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_worker_processes_serve_metrics_and_log_json(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    port = 23_640 + hash(str(tmp_path)) % 2_000
    words = [HOLDFAST, "worker", "shop:app", "--processes", "2", "--metrics-port", str(port), "--log-format", "json"]
    environment = clean_environment()
    worker = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        texts = [read_metrics(port), read_metrics(port + 1)]
        start = "import asyncio, shop\nasync def main():\n async with shop.app.connect():\n"
        start += "  await (await shop.app.start('order', id='o-1')).result(timeout=60)\nasyncio.run(main())"
        subprocess.run([sys.executable, "-c", start], cwd=tmp_path, check=True)
    finally:
        worker.terminate()
        _, errors = worker.communicate(timeout=300)

    assert all("holdfast_runs_started_total" in text for text in texts)
    lines = [json.loads(line) for line in errors.splitlines()]
    [charged] = [line for line in lines if line["message"] == "charged"]
    assert (charged["workflow"], charged["instance_id"], charged["step_key"], charged["attempt"]) == (
        "order", "o-1", "charge", 1,
    )  # fmt: skip


def test_a_queue_is_paused_moved_and_resumed_and_a_limit_is_changed(live: LiveServer) -> None:
    assert _said(live, "queues", "pause", "idle", "--reason", "the bank is down") == "idle: paused"
    rows = {row[0]: row for row in (line.split() for line in _said(live, "queues").splitlines())}
    assert rows["idle"][-1] == "paused"
    assert _said(live, "queues", "move", "nothing", "--to", "idle") == "nothing: 0 runs moved to idle"
    assert _said(live, "queues", "resume", "idle") == "idle: resumed"

    assert _said(live, "limits", "list") == "There are no limits."
    unknown = live.run("limits", "set", "none", "--concurrency", "1")
    assert (unknown.returncode, "LIMIT_NOT_FOUND" in unknown.stderr) == (1, True)
    wrong = live.run("limits", "set", "none", "--rate", "fast")
    assert (wrong.returncode, "N/DURATION" in wrong.stderr) == (2, True)


def test_a_worker_is_drained_and_resumed(live: LiveServer) -> None:
    [_, row] = _said(live, "workers").splitlines()
    worker = row.split()[0]

    assert _said(live, "workers", "drain", worker, "--reason", "the host is replaced") == f"{worker}: draining"
    assert _said(live, "workers").splitlines()[1].split()[1] == "draining"
    assert _said(live, "workers", "resume", worker) == f"{worker}: resumed"
    assert "WORKER_NOT_FOUND" in live.run("workers", "drain", "nobody").stderr


def _said(live: LiveServer, *arguments: str) -> str:
    done = live.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
