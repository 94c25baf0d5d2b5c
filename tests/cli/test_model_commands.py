"""The management commands on chains and graphs, and the commands that exist only for these."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .live import LiveServer, wait_for
from .running import holdfast
from .scripted import Response, ScriptedServer
from .test_instances import TIME, instance_args, without_times

APP = """
import asyncio
from pathlib import Path

from holdfast import ChainTask, Completed, Context, Dead, Holdfast, Outbound, Retry, RetryStep, Waiting, WorkerConfig

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", worker=WorkerConfig(poll="100 ms", drain="5 seconds"))
orders = app.chain("order.process", version=2)
etl = app.graph("etl", version=3)


@orders.step("VALIDATE", max_attempts=3)
async def validate(task: ChainTask):
    if task.params == "stolen":
        return Dead("card stolen")
    if task.params == "busy":
        return RetryStep("1 hour", "gateway busy")
    return Completed({"ok": True}, outbound=[Outbound("order.validated", {"order": task.instance_id})])


@orders.step("PAY")
async def pay(task: ChainTask):
    return task.event.payload if task.event else Waiting("paid", timeout="1 hour")


@orders.step("SHIP")
async def ship(task: ChainTask):
    return "shipped"


@app.outbox(max_attempts=1)
async def deliver(event):
    if not (HERE / "open").exists():
        raise ConnectionError("no route to host")


@etl.node
async def extract(params: int) -> list[int]:
    return [*range(params)]


@etl.node(map=extract)
async def double(extract: int) -> int:
    return extract * 2


@etl.node(after=[double], when=lambda double: len(double) > 2)
async def total(double: list[int]) -> int:
    return sum(double)


@etl.node(after=[extract], retry=Retry(limit=1, delay="1 hour"))
async def audit(extract: list[int]) -> None:
    if extract == [0]:
        raise ValueError("one is too few")


@etl.node(after=[audit])
async def report(audit: None) -> str:
    return "done"


@app.workflow
async def plain(ctx: Context) -> None:
    await ctx.wait_for_event("go", type="go")
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("live"), APP)
    live.start()
    yield live
    assert live.stop() == 0


def chain_args(id: str) -> tuple[str, ...]:
    return instance_args(id, "order.process")


def graph_args(id: str) -> tuple[str, ...]:
    return instance_args(id, "etl")


def value(shown: str, name: str) -> str:
    [text] = re.findall(rf"^{name}  +(.*)$", shown, re.MULTILINE)
    return str(text)


# --- chains


def test_a_chain_is_shown_from_its_start_to_its_end(live: LiveServer) -> None:
    live.create("order.process", "c-1")

    waits = live.until("order.process", "c-1", "PAY")
    assert (value(waits, "kind"), value(waits, "version"), value(waits, "native status")) == ("chain", "2", "RUNNING")
    assert re.fullmatch(rf"PAY \(do\), WAITING, until {TIME} UTC", value(waits, "step"))
    waiting = without_times(live.ok("history", *chain_args("c-1")))
    assert waiting[:-2] == [
        "order.process/c-1, run 0: waiting; times are UTC",
        "TIME  the run began",
        'TIME  VALIDATE: DONE: {"ok": true}',
        "TIME  PAY: WAITING for an event of type paid until TIME",
        "                         SHIP: PENDING",
    ]
    assert waiting[-1].startswith("Now: waiting for an event of type 'paid' in 'PAY'")

    live.ok("send-event", *chain_args("c-1"), "-t", "paid", "--payload", '{"by": "ann"}')
    ended = live.until("order.process", "c-1", "complete")
    assert value(ended, "native status") == "COMPLETED"
    history = without_times(live.ok("history", *chain_args("c-1")))
    assert history == [
        "order.process/c-1, run 0: complete; times are UTC",
        "TIME  the run began",
        'TIME  VALIDATE: DONE: {"ok": true}',
        'TIME  event paid received: {"by": "ann"} (delivered to PAY)',
        'TIME  PAY: DONE: {"by": "ann"}',
        'TIME  SHIP: DONE: "shipped"',
        "TIME  the run ended: complete",
    ]
    assert without_times(live.ok("history", *chain_args("c-1"), "--order", "desc")) == history[:1] + history[:0:-1]


def test_a_failed_step_is_shown_with_its_attempts_and_error(live: LiveServer) -> None:
    live.create("order.process", "busy", '"busy"')
    live.create("order.process", "stolen", '"stolen"')

    busy = live.until("order.process", "busy", "waiting")
    assert re.match(
        rf"VALIDATE \(do\), READY, 1 of 3 attempts failed, tries again at {TIME} UTC; .*gateway busy",
        value(busy, "step"),
    )
    history = without_times(live.ok("history", *chain_args("busy")))
    assert re.fullmatch(
        "TIME  VALIDATE: READY, 1 of 3 attempts failed: .*gateway busy; tries again at TIME", history[2]
    ), history
    live.until("order.process", "stolen", "errored")
    dead = without_times(live.ok("history", *chain_args("stolen")))
    assert re.fullmatch("TIME  VALIDATE: DEAD, 1 of 3 attempts failed: .*card stolen", dead[2]), dead
    assert [line.strip() for line in dead[-2:]] == ["PAY: PENDING", "SHIP: PENDING"]


def test_a_list_of_chains_has_a_kind_column(live: LiveServer) -> None:
    live.create("order.process", "listed")
    live.create("plain", "listed")

    chains, plain = live.ok("list", "-w", "order.process"), live.ok("list", "-w", "plain")

    assert re.match(r"ID +KIND +STATUS +CREATED \(UTC\)", chains)
    assert re.search(rf"^listed +chain +\w+ +{TIME}", chains, re.MULTILINE)
    assert re.match(r"ID +STATUS +CREATED \(UTC\)\n", plain)


def test_parked_events_are_shown_and_redelivered_on_request(live: LiveServer) -> None:
    live.create("order.process", "history")
    parked = wait_for(lambda: live.ok("outbox", *chain_args("history")), lambda shown: "parked" in shown)

    header, event, _, hint, command = parked.splitlines()
    assert header.split() == ["EVENT", "STEP", "STATE", "SINCE", "(UTC)", "FAILED", "ERROR", "PAYLOAD"]
    assert re.fullmatch(
        rf'order\.validated +VALIDATE +parked +{TIME} +1 +ConnectionError: no route to host +{{"order": "history"}}',
        event,
    )
    assert (hint, command) == (
        "Deliver parked events again with:",
        "  holdfast instances redeliver -w order.process -i history",
    )

    (live.folder / "open").touch()
    assert (
        live.ok("redeliver", *chain_args("history"))
        == "order.process/history: 1 parked event will be delivered again.\n"
    )
    delivered = wait_for(lambda: live.ok("outbox", *chain_args("history")), lambda shown: "delivered" in shown)
    assert "redeliver" not in delivered
    assert live.ok("redeliver", *chain_args("history")) == "order.process/history: no event is parked.\n"


def test_an_empty_outbox_is_reported(live: LiveServer) -> None:
    live.create("plain", "quiet")

    assert live.ok("outbox", *instance_args("quiet", "plain")) == "The outbox of plain/quiet is empty.\n"


def test_a_redelivery_that_may_have_taken_effect_is_not_repeated() -> None:
    with ScriptedServer().running() as server:
        server.will_respond(Response(drop=True), Response(200, {"redelivered": 1}))
        done = holdfast("instances", "redeliver", *chain_args("c"), "-b", server.base, "--retry-delay", "0")

    assert (done.returncode, len(server.requests)) == (1, 1)
    assert server.requests[0].path == "/api/workflows/order.process/instances/c/outbox/redeliver"


# --- graphs


def test_a_completed_graph_is_shown_with_its_nodes(live: LiveServer) -> None:
    live.create("etl", "g-1", "3")

    shown = live.until("etl", "g-1", "complete")
    assert (value(shown, "kind"), value(shown, "version")) == ("graph", "3")
    assert not re.search("^(native status|killed)", shown, re.MULTILINE)
    history = without_times(live.ok("history", *graph_args("g-1")))
    assert (history[0], history[-1]) == ("etl/g-1, run 0: complete; times are UTC", "TIME  the run ended: complete")
    for line in (
        "TIME  extract started",
        "TIME  extract: ok after A WHILE: [0, 1, 2]",
        "TIME  double[2]: ok after A WHILE: 4",
        "TIME  double: ok after A WHILE: [0, 2, 4]",
        "TIME  total: ok after A WHILE: 6",
        "TIME  audit: ok after A WHILE",
        'TIME  report: ok after A WHILE: "done"',
    ):
        assert line in history, line
    assert "kind" in live.ok("list", "-w", "etl").lower()


def test_a_graph_that_waits_for_a_retry_is_shown_and_can_be_killed(live: LiveServer) -> None:
    live.create("etl", "g-2", "1")

    def read_history() -> str:
        return "\n".join(without_times(live.ok("history", *graph_args("g-2"))))

    history = wait_for(read_history, lambda text: "retrying" in text and "total: skipped" in text).splitlines()
    assert "TIME  total: skipped" in history
    assert "TIME  total started" not in history
    assert "TIME  audit started" in history
    assert "TIME  audit: retrying on attempt 1 of 2: ValueError: one is too few; tries again at TIME" in history
    assert "                         report: pending" in history
    step = value(live.get("etl", "g-2"), "step")
    assert re.fullmatch(
        rf"audit \(node\), retrying, attempt 1 of 2, tries again at {TIME} UTC; ValueError: one is too few", step
    )

    assert live.ok("kill", *graph_args("g-2"), "--reason", 'wrong "source" é') == "etl/g-2: killed.\n"
    shown = live.get("etl", "g-2")
    assert (value(shown, "status"), value(shown, "why")) == ("terminated", 'terminated: wrong "source" é')
    assert value(shown, "killed") == "yes: it has a tombstone"
    again = live.run("instances", "kill", *graph_args("g-2"))
    assert re.fullmatch(r"Request failed: 409 .*cannot be killed.* \(INSTANCE_TERMINAL\)\n", again.stderr)


def test_facts_are_shown_by_their_keys(live: LiveServer) -> None:
    live.create("etl", "g-3", "3")
    live.until("etl", "g-3", "complete")

    everything = live.ok("facts", *graph_args("g-3"))
    results = live.ok("facts", *graph_args("g-3"), "--prefix", "result/")

    assert re.search(r"^meta +\{.*\"wf_version\": 3", everything, re.MULTILINE)
    assert re.search(r"^start/extract/\d+ +\{\"owner\": ", everything, re.MULTILINE)
    assert len(results.splitlines()) == 1 + 5
    assert re.search(r'^result/total +\{"status": "ok", "data": 6, "ts": \d+\}$', results, re.MULTILINE)
    nothing = live.ok("facts", *graph_args("g-3"), "--prefix", "tombstone")
    assert nothing == "No facts of etl/g-3 begin with tombstone.\n"


def test_graphs_and_their_runs_are_drawn(live: LiveServer) -> None:
    live.create("etl", "g-4", "2")
    live.until("etl", "g-4", "complete")

    drawn = live.run("workflows", "mermaid", "-w", "etl")
    coloured = live.ok("mermaid", *graph_args("g-4"))

    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout.startswith('flowchart TD\n    n1["extract"]\n    n2[["double"]]\n')
    assert coloured.startswith(drawn.stdout)
    assert "    class n3 skipped\n" in coloured


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["instances", "facts", "-w", "plain", "-i", "p"], r"400 .*is a workflow, not a graph \(INVALID_OPTION\)"),
        (["instances", "kill", "-w", "plain", "-i", "p"], r"400 .*is a workflow, not a graph \(INVALID_OPTION\)"),
        (["instances", "mermaid", "-w", "plain", "-i", "p"], r"400 .*is a workflow, not a graph \(INVALID_OPTION\)"),
        (["instances", "mermaid", "-w", "etl", "-i", "nope"], r"404 .*\(INSTANCE_NOT_FOUND\)"),
        (["instances", "outbox", "-w", "etl", "-i", "nope"], r"404 .*\(INSTANCE_NOT_FOUND\)"),
        (["instances", "redeliver", "-w", "nope", "-i", "p"], r"404 .*\(WORKFLOW_NOT_FOUND\)"),
        (["workflows", "mermaid", "-w", "plain"], r"400 .*'plain' is a workflow, not a graph \(INVALID_OPTION\)"),
        (["workflows", "mermaid", "-w", "nope"], r"404 .*\(WORKFLOW_NOT_FOUND\)"),
    ],
)
def test_a_refusal_by_the_server_is_one_line(live: LiveServer, arguments: list[str], error: str) -> None:
    if "p" in arguments:
        live.run("instances", "create", *instance_args("p", "plain"))

    done = live.run(*arguments)

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(f"Request failed: {error}\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    "response",
    [Response(200, {"workflows": []}), Response(200, b"<html>", {"content-type": "text/html"}), Response(204, b"")],
    ids=["json", "html", "nothing"],
)
def test_a_response_that_is_not_a_drawing_is_not_shown(response: Response) -> None:
    with ScriptedServer().running() as server:
        server.will_respond(response)
        done = holdfast("workflows", "mermaid", "-w", "etl", "-b", server.base)

    assert (done.returncode, done.stdout) == (1, "")
    assert "but the response is not one of a Holdfast API" in done.stderr


def test_control_characters_in_a_drawing_are_escaped() -> None:
    with ScriptedServer().running() as server:
        server.will_respond(
            Response(503), Response(200, "flöw\n\x1b[31mred\n".encode(), {"content-type": "text/plain"})
        )
        done = holdfast("workflows", "mermaid", "-w", "etl", "-b", server.base, "--retry-delay", "0")

    assert (done.returncode, done.stdout) == (0, "flöw\n\\x1b[31mred\n")
