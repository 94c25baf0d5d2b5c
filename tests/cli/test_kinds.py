"""Chains and graphs by the commands: how they are shown and told, and the commands that only they have."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .live import Live, wait_for
from .running import holdfast
from .scripted import Answer, Scripted
from .test_instances import TIME, of, untimed

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
async def post(event):
    if not (HERE / "open").exists():
        raise ConnectionError("nobody is there")


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
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("live"), APP)
    live.start()
    yield live
    assert live.stop() == 0


def chain(id: str) -> tuple[str, ...]:
    return of(id, "order.process")


def graph(id: str) -> tuple[str, ...]:
    return of(id, "etl")


def value(shown: str, name: str) -> str:
    [found] = re.findall(rf"^{name}  +(.*)$", shown, re.MULTILINE)
    return str(found)


# --- chains


def test_a_chain_from_its_start_to_its_end(live: Live) -> None:
    live.create("order.process", "c-1")

    waits = live.until("order.process", "c-1", "PAY")
    assert (value(waits, "kind"), value(waits, "version"), value(waits, "native status")) == ("chain", "2", "RUNNING")
    assert re.fullmatch(rf"PAY \(do\), WAITING, until {TIME} UTC", value(waits, "step"))
    at_rest = untimed(live.ok("history", *chain("c-1")))
    assert at_rest[:-2] == [
        "order.process/c-1, run 0: waiting; times are UTC",
        "TIME  the run began",
        'TIME  VALIDATE: DONE: {"ok": true}',
        "TIME  PAY: WAITING for an event of type paid until TIME",
        "                         SHIP: PENDING",
    ]
    assert at_rest[-1].startswith("Now: waiting for an event of type 'paid' in 'PAY'")

    live.ok("send-event", *chain("c-1"), "-t", "paid", "--payload", '{"by": "ann"}')
    ended = live.until("order.process", "c-1", "complete")
    assert value(ended, "native status") == "COMPLETED"
    told = untimed(live.ok("history", *chain("c-1")))
    assert told == [
        "order.process/c-1, run 0: complete; times are UTC",
        "TIME  the run began",
        'TIME  VALIDATE: DONE: {"ok": true}',
        'TIME  event paid came: {"by": "ann"} (taken by PAY)',
        'TIME  PAY: DONE: {"by": "ann"}',
        'TIME  SHIP: DONE: "shipped"',
        "TIME  the run ended: complete",
    ]
    assert untimed(live.ok("history", *chain("c-1"), "--order", "desc")) == told[:1] + told[:0:-1]


def test_a_step_that_failed_says_so(live: Live) -> None:
    live.create("order.process", "busy", '"busy"')
    live.create("order.process", "stolen", '"stolen"')

    busy = live.until("order.process", "busy", "waiting")
    assert re.match(
        rf"VALIDATE \(do\), READY, 1 of 3 attempts failed, tries again at {TIME} UTC; .*gateway busy",
        value(busy, "step"),
    )
    told = untimed(live.ok("history", *chain("busy")))
    assert re.fullmatch(
        "TIME  VALIDATE: READY, 1 of 3 attempts failed: .*gateway busy; tries again at TIME", told[2]
    ), told
    live.until("order.process", "stolen", "errored")
    dead = untimed(live.ok("history", *chain("stolen")))
    assert re.fullmatch("TIME  VALIDATE: DEAD, 1 of 3 attempts failed: .*card stolen", dead[2]), dead
    assert [line.strip() for line in dead[-2:]] == ["PAY: PENDING", "SHIP: PENDING"]


def test_a_list_of_chains_says_what_they_are(live: Live) -> None:
    live.create("order.process", "listed")
    live.create("plain", "listed")

    chains, plain = live.ok("list", "-w", "order.process"), live.ok("list", "-w", "plain")

    assert re.match(r"ID +KIND +STATUS +CREATED \(UTC\)", chains)
    assert re.search(rf"^listed +chain +\w+ +{TIME}", chains, re.MULTILINE)
    assert re.match(r"ID +STATUS +CREATED \(UTC\)\n", plain)


def test_parked_events_are_shown_and_delivered_when_asked(live: Live) -> None:
    live.create("order.process", "told")
    parked = wait_for(lambda: live.ok("outbox", *chain("told")), lambda shown: "parked" in shown)

    header, event, _, hint, command = parked.splitlines()
    assert header.split() == ["EVENT", "STEP", "STATE", "SINCE", "(UTC)", "FAILED", "ERROR", "PAYLOAD"]
    assert re.fullmatch(
        rf'order\.validated +VALIDATE +parked +{TIME} +1 +ConnectionError: nobody is there +{{"order": "told"}}', event
    )
    assert (hint, command) == (
        "Parked events are tried again by:",
        "  holdfast instances redeliver -w order.process -i told",
    )

    (live.folder / "open").touch()
    assert live.ok("redeliver", *chain("told")) == "order.process/told: 1 parked event will be tried again.\n"
    delivered = wait_for(lambda: live.ok("outbox", *chain("told")), lambda shown: "delivered" in shown)
    assert "redeliver" not in delivered
    assert live.ok("redeliver", *chain("told")) == "order.process/told: no event is parked.\n"


def test_an_empty_outbox(live: Live) -> None:
    live.create("plain", "quiet")

    assert live.ok("outbox", *of("quiet", "plain")) == "plain/quiet has nothing in its outbox.\n"


def test_a_redelivery_is_not_repeated_blindly() -> None:
    with Scripted().running() as server:
        server.will_answer(Answer(drop=True), Answer(200, {"redelivered": 1}))
        done = holdfast("instances", "redeliver", *chain("c"), "-b", server.base, "--retry-delay", "0")

    assert (done.returncode, len(server.asked)) == (1, 1)
    assert server.asked[0].path == "/api/workflows/order.process/instances/c/outbox/redeliver"


# --- graphs


def test_a_graph_that_came_to_its_end(live: Live) -> None:
    live.create("etl", "g-1", "3")

    shown = live.until("etl", "g-1", "complete")
    assert (value(shown, "kind"), value(shown, "version")) == ("graph", "3")
    assert not re.search("^(native status|killed)", shown, re.MULTILINE)
    told = untimed(live.ok("history", *graph("g-1")))
    assert (told[0], told[-1]) == ("etl/g-1, run 0: complete; times are UTC", "TIME  the run ended: complete")
    for line in (
        "TIME  extract started",
        "TIME  extract: ok after A WHILE: [0, 1, 2]",
        "TIME  double[2]: ok after A WHILE: 4",
        "TIME  double: ok after A WHILE: [0, 2, 4]",
        "TIME  total: ok after A WHILE: 6",
        "TIME  audit: ok after A WHILE",
        'TIME  report: ok after A WHILE: "done"',
    ):
        assert line in told, line
    assert "kind" in live.ok("list", "-w", "etl").lower()


def test_a_graph_that_goes_on_later(live: Live) -> None:
    live.create("etl", "g-2", "1")

    def told_of() -> str:
        return "\n".join(untimed(live.ok("history", *graph("g-2"))))

    told = wait_for(told_of, lambda text: "retrying" in text and "total: skipped" in text).splitlines()
    assert "TIME  total: skipped" in told
    assert "TIME  total started" not in told
    assert "TIME  audit started" in told
    assert "TIME  audit: retrying on attempt 1 of 2: ValueError: one is too few; tries again at TIME" in told
    assert "                         report: pending" in told
    step = value(live.get("etl", "g-2"), "step")
    assert re.fullmatch(
        rf"audit \(node\), retrying, attempt 1 of 2, tries again at {TIME} UTC; ValueError: one is too few", step
    )

    assert live.ok("kill", *graph("g-2"), "--reason", 'wrong "source" é') == "etl/g-2 is killed.\n"
    shown = live.get("etl", "g-2")
    assert (value(shown, "status"), value(shown, "why")) == ("terminated", 'terminated: wrong "source" é')
    assert value(shown, "killed") == "yes: it has a tombstone"
    again = live.run("instances", "kill", *graph("g-2"))
    assert re.fullmatch(r"Request failed: 409 .*cannot be killed.* \(INSTANCE_TERMINAL\)\n", again.stderr)


def test_facts_are_shown_by_their_keys(live: Live) -> None:
    live.create("etl", "g-3", "3")
    live.until("etl", "g-3", "complete")

    everything = live.ok("facts", *graph("g-3"))
    results = live.ok("facts", *graph("g-3"), "--prefix", "result/")

    assert re.search(r"^meta +\{.*\"wf_version\": 3", everything, re.MULTILINE)
    assert re.search(r"^start/extract/\d+ +\{\"owner\": ", everything, re.MULTILINE)
    assert len(results.splitlines()) == 1 + 5
    assert re.search(r'^result/total +\{"status": "ok", "data": 6, "ts": \d+\}$', results, re.MULTILINE)
    nothing = live.ok("facts", *graph("g-3"), "--prefix", "tombstone")
    assert nothing == "No facts of etl/g-3 begin with tombstone.\n"


def test_graphs_and_their_runs_are_drawn(live: Live) -> None:
    live.create("etl", "g-4", "2")
    live.until("etl", "g-4", "complete")

    drawn = live.run("workflows", "mermaid", "-w", "etl")
    coloured = live.ok("mermaid", *graph("g-4"))

    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout.startswith('flowchart TD\n    n1["extract"]\n    n2[["double"]]\n')
    assert coloured.startswith(drawn.stdout)
    assert "    class n3 skipped\n" in coloured


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["instances", "facts", "-w", "plain", "-i", "p"], r"400 .*is a workflow and no graph \(INVALID_OPTION\)"),
        (["instances", "kill", "-w", "plain", "-i", "p"], r"400 .*is a workflow and no graph \(INVALID_OPTION\)"),
        (["instances", "mermaid", "-w", "plain", "-i", "p"], r"400 .*is a workflow and no graph \(INVALID_OPTION\)"),
        (["instances", "mermaid", "-w", "etl", "-i", "nope"], r"404 .*\(INSTANCE_NOT_FOUND\)"),
        (["instances", "outbox", "-w", "etl", "-i", "nope"], r"404 .*\(INSTANCE_NOT_FOUND\)"),
        (["instances", "redeliver", "-w", "nope", "-i", "p"], r"404 .*\(WORKFLOW_NOT_FOUND\)"),
        (["workflows", "mermaid", "-w", "plain"], r"400 .*'plain' is a workflow and no graph \(INVALID_OPTION\)"),
        (["workflows", "mermaid", "-w", "nope"], r"404 .*\(WORKFLOW_NOT_FOUND\)"),
    ],
)
def test_what_the_server_refuses(live: Live, arguments: list[str], error: str) -> None:
    if "p" in arguments:
        live.run("instances", "create", *of("p", "plain"))

    done = live.run(*arguments)

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(f"Request failed: {error}\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    "answer",
    [Answer(200, {"workflows": []}), Answer(200, b"<html>", {"content-type": "text/html"}), Answer(204, b"")],
    ids=["json", "html", "nothing"],
)
def test_a_drawing_that_is_none_is_not_shown(answer: Answer) -> None:
    with Scripted().running() as server:
        server.will_answer(answer)
        done = holdfast("workflows", "mermaid", "-w", "etl", "-b", server.base)

    assert (done.returncode, done.stdout) == (1, "")
    assert "but not with the answer of a Holdfast API" in done.stderr


def test_a_drawing_cannot_steer_the_terminal() -> None:
    with Scripted().running() as server:
        server.will_answer(Answer(503), Answer(200, "flöw\n\x1b[31mred\n".encode(), {"content-type": "text/plain"}))
        done = holdfast("workflows", "mermaid", "-w", "etl", "-b", server.base, "--retry-delay", "0")

    assert (done.returncode, done.stdout) == (0, "flöw\n\\x1b[31mred\n")
