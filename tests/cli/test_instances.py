"""Every command of ``holdfast instances``, run as a process against a real server with a worker."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from .live import LiveServer
from .running import HOLDFAST, clean_environment, plain

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("live"))
    live.start()
    yield live
    assert live.stop() == 0


def instance_args(id: str, workflow: str = "fulfil") -> tuple[str, ...]:
    return ("-w", workflow, "-i", id)


def start_order(live: LiveServer, id: str) -> None:
    live.create("fulfil", id, f'{{"id": "{id}", "total": 125}}')


def approve(live: LiveServer, id: str) -> str:
    return live.ok("send-event", *instance_args(id), "-t", "approval", "--payload", '{"by": "ann"}')


def without_times(text: str) -> list[str]:
    """The lines of a text, with times and durations replaced."""
    text = re.sub(TIME, "TIME", text)
    return re.sub(r"after( \d+ (min|s|ms))+", "after A WHILE", text).splitlines()


# --- reading


def test_workflows_are_listed_in_their_order(live: LiveServer) -> None:
    done = live.run("workflows", "list")

    names = ["fulfil", "greet", "refuses", "hopeless", "talks", "chatters", "renting", "stubborn", "helper", "boss"]
    assert done.stdout.split() == ["WORKFLOW", *names]


def test_an_order_is_shown_from_its_start_to_its_end(live: LiveServer) -> None:
    created = live.ok("create", *instance_args("o-1"), "--params", '{"id": "o-1", "total": 125}')
    assert created == "fulfil/o-1 is created: active\n  holdfast instances get -w fulfil -i o-1\n"

    waits = live.until("fulfil", "o-1", "approval")
    assert waits.startswith("fulfil/o-1\nstatus     waiting\nwhy        waiting for an event of type 'approval'")
    assert re.search(rf"^step       approval \(waitForEvent\), waiting, until {TIME} UTC$", waits, re.MULTILINE)
    for name in ("created", "started", "updated"):
        assert re.search(rf"^{name} +{TIME} UTC$", waits, re.MULTILINE)
    assert '"total"' not in waits

    assert approve(live, "o-1") == "event approval is sent to fulfil/o-1, which was waiting\n"
    live.until("fulfil", "o-1", "complete")
    full = live.ok("get", *instance_args("o-1"), "--full")
    assert '\nInput:\n{\n  "id": "o-1",\n  "total": 125\n}\n' in full
    assert '\nOutput:\n{\n  "payment": "payment-o-1",\n  "by": "ann"\n}\n' in full


def test_a_history_is_shown_in_chronological_order(live: LiveServer) -> None:
    start_order(live, "order")
    live.until("fulfil", "order", "approval")
    approve(live, "order")
    live.until("fulfil", "order", "complete")

    history = without_times(live.ok("history", *instance_args("order"), "--include-logs"))

    assert history == [
        "fulfil/order, run 0: complete; times are UTC",
        "TIME  the run began",
        'TIME  log info   workflow  order received  {"total": 125}',
        "TIME  charge began",
        'TIME  charge completed on attempt 2 of 3 after A WHILE: "payment-order"',
        "TIME  cool off: sleeps until TIME",
        "TIME  cool off: slept",
        "TIME  approval: waits for an event of type approval until TIME",
        'TIME  event approval received: {"by": "ann"} (delivered to approval)',
        "TIME  approval: received its event",
        "TIME  the run ended: complete",
    ]
    assert (
        without_times(live.ok("history", *instance_args("order"), "--include-logs", "--order", "desc"))
        == history[:1] + history[:0:-1]
    )
    without = [line for line in history if "log info" not in line]
    assert without_times(live.ok("history", *instance_args("order"))) == without
    assert (
        without_times(live.ok("history", *instance_args("order"), "--include-logs", "--log-level", "warn")) == without
    )
    assert (
        without_times(live.ok("history", *instance_args("order"), "--include-logs", "--log-category", "mood"))
        == without
    )


def test_a_history_can_be_read_page_by_page(live: LiveServer) -> None:
    start_order(live, "pages")
    live.until("fulfil", "pages", "approval")

    first = live.ok("history", *instance_args("pages"), "--page-size", "2")
    [cursor] = re.findall(r"--steps-cursor (\S+)", first)
    second = live.ok("history", *instance_args("pages"), "--page-size", "2", "--steps-cursor", cursor)

    assert "charge began" in first
    assert "approval: waits" not in first
    assert "charge began" not in second
    assert "the run began" not in first + second
    assert "approval: waits" in second
    assert "--steps-cursor" not in second


def test_a_pending_retry_is_shown(live: LiveServer) -> None:
    live.create("hopeless", "h-1")

    shown = live.until("hopeless", "h-1", "waiting")
    history = without_times(live.ok("history", *instance_args("h-1", "hopeless")))

    assert "waiting to retry step 'call' after failed attempt 1 of 6 (ConnectionError: no route to host)" in shown
    assert re.search(r"call \(do\), waiting, attempt 1 of 6, tries again at .* UTC; ConnectionError: no route", shown)
    assert "TIME  call failed on attempt 1 of 6: ConnectionError: no route to host; tries again at TIME" in history
    assert history[-1].startswith("Now: waiting to retry step 'call'")


def test_errors_are_shown_by_get_list_and_history(live: LiveServer) -> None:
    live.create("refuses", "r-1")

    shown = live.until("refuses", "r-1", "errored")
    listed = live.ok("list", "-w", "refuses")
    history = live.ok("history", *instance_args("r-1", "refuses"))

    assert re.search(r"^error +CardStolen: the card is stolen$", shown, re.MULTILINE)
    assert re.search(rf"^r-1 +errored +{TIME} +CardStolen: the card is stolen$", listed, re.MULTILINE)
    assert "the run ended: errored: CardStolen: the card is stolen" in history


def test_tracebacks_are_shown_by_get_and_by_a_full_history(live: LiveServer) -> None:
    live.create("refuses", "r-2")
    live.create("hopeless", "h-2")

    shown = live.until("refuses", "r-2", "errored")
    history = live.ok("history", *instance_args("r-2", "refuses"), "--full")
    retrying = live.until("hopeless", "h-2", "waiting")
    retry_history = live.ok("history", *instance_args("h-2", "hopeless"), "--full")

    source = 'raise NonRetryableError("the card is stolen", name="CardStolen")'
    assert "\n\nTraceback (most recent call last):\n" in shown
    assert source in shown
    assert source in history
    assert source not in live.ok("history", *instance_args("r-2", "refuses"))
    assert "ConnectionError: no route to host" in retrying.partition("\ncall:\nTraceback")[2]
    assert "Traceback (most recent call last):" in retry_history


def test_logs_are_filtered_and_a_message_cannot_fake_a_log_line(live: LiveServer) -> None:
    live.create("refuses", "r-3")
    live.until("refuses", "r-3", "errored")

    lines = without_times(live.ok("logs", *instance_args("r-3", "refuses"), "--log-category", "mood"))

    assert lines == ["TIME  error  mood  cannot [bold]go[/bold]", "    with \\x1b[31mred"]
    assert without_times(live.ok("logs", *instance_args("r-3", "refuses"), "--log-level", "error"))[:2] == lines
    assert live.ok("logs", *instance_args("r-3", "refuses"), "--log-level", "debug") == ""


def test_many_logs_are_all_shown_or_page_by_page(live: LiveServer) -> None:
    live.create("chatters", "c-1", "230")
    live.until("chatters", "c-1", "complete")

    everything = re.findall(r"line \d+", live.ok("logs", *instance_args("c-1", "chatters")))
    backwards = re.findall(r"line \d+", live.ok("logs", *instance_args("c-1", "chatters"), "--order", "desc"))
    page = live.ok("logs", *instance_args("c-1", "chatters"), "--page-size", "100")
    [cursor] = re.findall(r"--logs-cursor (\S+)", page)
    rest = live.ok("logs", *instance_args("c-1", "chatters"), "--page-size", "2", "--logs-cursor", cursor)
    followed = re.findall(r"line \d+", live.ok("logs", *instance_args("c-1", "chatters"), "--follow"))

    assert everything == followed == backwards[::-1] == [f"line {n}" for n in range(230)]
    assert re.findall(r"line \d+", rest) == ["line 100", "line 101"]


def test_lists_are_filtered_and_paged(live: LiveServer) -> None:
    for number in range(3):
        live.create("greet", f"g-{number}", '"ann"')
        live.until("greet", f"g-{number}", "complete")

    first = live.ok("list", "-w", "greet", "--page-size", "2", "--status", "complete")
    [next_page] = re.findall(r"^  holdfast (.*)$", first, re.MULTILINE)
    second = live.run(*next_page.split()).stdout

    assert re.findall(r"^g-\d", first, re.MULTILINE) == ["g-2", "g-1"]
    assert re.findall(r"^g-\d", second, re.MULTILINE) == ["g-0"]
    assert live.ok("list", "-w", "greet", "--status", "paused") == "No paused instances of greet.\n"


def test_lists_are_searched_by_attributes(live: LiveServer) -> None:
    for number, customer in enumerate(["bob", "bob", "bob", "christine"]):
        live.create("renting", f"r-{number}", f'"{customer}"')
        live.until("renting", f"r-{number}", "rent")

    def found(*searches: str) -> list[str]:
        shown = live.ok("list", "-w", "renting", *(word for text in searches for word in ("--search", text)))
        return re.findall(r"^r-\d", shown, re.MULTILINE)

    assert found("customer=bob") == ["r-2", "r-1", "r-0"]
    assert found("customer=christine", "days=9", "tags=red") == ["r-3"]
    assert found("days=>3") == found("days=>=9") == found('customer=>"bob"') == ["r-3"]
    assert found("days=<=3", "tags=car") == ["r-2", "r-1", "r-0"]
    assert found('days="9"') == found("customer=bob", "days=9") == found("customer=a=b&c é") == []
    none = live.ok("list", "-w", "renting", "--search", "customer=nobody")
    assert none == "No instances of renting with these attributes.\n"


def test_the_printed_command_shows_the_next_page_of_a_search(live: LiveServer) -> None:
    for number in range(3):
        live.create("renting", f"page-{number}", '"dora o\'neill"')
        live.until("renting", f"page-{number}", "rent")

    search = ("--search", "customer=dora o'neill", "--search", "days=>=12", "--search", "days=<1000")
    first = live.ok("list", "-w", "renting", "--page-size", "2", "--status", "waiting", *search)
    [next_page] = re.findall(r"^  holdfast (.*)$", first, re.MULTILINE)
    second = live.run(*shlex.split(next_page)).stdout

    assert re.findall(r"^page-\d", first, re.MULTILINE) == ["page-2", "page-1"]
    assert re.findall(r"^page-\d", second, re.MULTILINE) == ["page-0"]


@pytest.mark.parametrize("searches", [["customer"], ["=5"], [""], ["n=\udcff"]])
def test_an_invalid_search_exits_with_2(live: LiveServer, searches: list[str]) -> None:
    done = live.run("instances", "list", "-w", "renting", *(word for text in searches for word in ("--search", text)))

    assert (done.returncode, done.stdout) == (2, "")
    assert "--search" in done.stderr
    assert "Traceback" not in done.stderr


def test_attributes_and_related_runs_are_shown(live: LiveServer) -> None:
    live.create("renting", "attributes", '"eve"')
    shown = live.until("renting", "attributes", "rent")
    assert '\nsearch     {"customer": "eve", "days": 3, "tags": ["car", "red"]}\n' in shown
    assert '\nmemo       {"note": "for eve"}\n' in shown

    live.create("boss", "1")
    boss = live.until("boss", "1", "go")
    assert re.search(r"\nchildren +helper/h-1 \(waiting\)\nlinks +helper/h-1\nmonitors +helper/h-1\n", boss)
    assert "waiting for child 'helper/h-1' to end" in boss
    helper = live.get("helper", "h-1")
    why = r"^why +waiting for message 'leave' \(.* so far\).*; linked to boss/1.*$"
    assert re.search(why, helper, re.MULTILINE)
    assert "\nstep       reply question from boss/1, completed\n" in helper
    assert "\nparent     boss/1\nlinks      boss/1\n" in helper
    assert not re.search("^(attempt|summary|children|monitors|search|memo)", helper, re.MULTILINE)


def test_a_history_shows_operations_on_other_runs(live: LiveServer) -> None:
    live.create("boss", "2")
    live.until("boss", "2", "go")
    live.send("boss", "2", "go")
    live.until("boss", "2", "complete")

    history = without_times(live.ok("history", *instance_args("2", "boss")))
    for line in (
        "TIME  child helper/h-2 began",
        "TIME  link helper/h-2: done",
        "TIME  ask question of helper/h-2 began",
        'TIME  helper/h-2 replied: "yes"',
        'TIME  ask question of helper/h-2 completed after A WHILE: "yes"',
        "TIME  send leave to helper/h-2: done",
        "TIME  helper/h-2 ended: complete",
        'TIME  child helper/h-2 completed after A WHILE: "bye"',
    ):
        assert line in history, line
    assert "#" not in "".join(history)
    helper_history = without_times(live.ok("history", *instance_args("h-2", "helper")))
    assert 'TIME  event question received from boss/2: {"may": "I"} (delivered to listen question)' in helper_history
    assert "TIME  reply question from boss/2: done" in helper_history


# --- control requests and events


def test_a_paused_run_keeps_its_events_until_it_is_resumed(live: LiveServer) -> None:
    start_order(live, "p-1")
    live.until("fulfil", "p-1", "approval")

    assert live.ok("pause", *instance_args("p-1")) == "fulfil/p-1: pause requested.\n"
    assert "paused by a request" in live.until("fulfil", "p-1", "paused")
    approve(live, "p-1")
    assert "(not delivered yet)" in live.ok("history", *instance_args("p-1"))
    assert live.ok("resume", *instance_args("p-1")) == "fulfil/p-1: resumed.\n"
    live.until("fulfil", "p-1", "complete")


def test_a_terminated_run_can_be_restarted_and_stays_readable(live: LiveServer) -> None:
    start_order(live, "t-1")
    live.until("fulfil", "t-1", "approval")

    assert live.ok("terminate", *instance_args("t-1")) == "fulfil/t-1: terminated.\n"
    assert "status       terminated" in live.get("fulfil", "t-1")
    refused = live.run("instances", "pause", *instance_args("t-1"))
    assert refused.returncode == 1
    assert re.fullmatch(r"Request failed: 409 .* \(INSTANCE_TERMINAL\)\n", refused.stderr)

    assert live.ok("restart", *instance_args("t-1")) == "fulfil/t-1: restarted.\n"
    shown = live.until("fulfil", "t-1", "approval")
    assert re.search(r"^run +1$", shown, re.MULTILINE)
    assert live.ok("history", *instance_args("t-1"), "--run", "0").startswith(
        "fulfil/t-1, run 0 (the current run is 1)"
    )
    assert live.ok("history", *instance_args("t-1"), "--run", "7").endswith("\nThere is no run 7.\n")


def test_a_command_acts_on_every_id_and_reports_each_outcome(live: LiveServer) -> None:
    for id_ in ("m-1", "m-2", "m-3"):
        start_order(live, id_)
        live.until("fulfil", id_, "approval")
    live.ok("terminate", *instance_args("m-2"))

    done = live.run("instances", "terminate", "-w", "fulfil", "-i", "m-1", "-i", "m-2", "-i", "nowhere", "-i", "m-3")

    assert done.returncode == 1
    assert done.stdout == "fulfil/m-1: terminated.\nfulfil/m-3: terminated.\n"
    ended, missing = done.stderr.splitlines()
    assert re.fullmatch(r"fulfil/m-2: Request failed: 409 .* \(INSTANCE_TERMINAL\)", ended)
    assert re.fullmatch(r"fulfil/nowhere: Request failed: 404 .* \(INSTANCE_NOT_FOUND\)", missing)

    twice = live.ok("restart", "-w", "fulfil", "-i", "m-1", "-i", "m-3", "-i", "m-1")
    assert twice == "fulfil/m-1: restarted.\nfulfil/m-3: restarted.\n"
    for id_ in ("m-1", "m-3"):
        assert re.search(r"^run +1$", live.until("fulfil", id_, "approval"), re.MULTILINE)


def test_a_run_that_has_ended_cannot_be_resumed(live: LiveServer) -> None:
    start_order(live, "r-1")
    start_order(live, "r-2")
    live.ok("terminate", *instance_args("r-1"))
    live.until("fulfil", "r-2", "approval")

    single = live.run("instances", "resume", *instance_args("r-1"))
    several = live.run("instances", "resume", "-w", "fulfil", "-i", "r-1", "-i", "r-2")

    message = "fulfil/r-1 has ended (terminated) and cannot be resumed; use restart to run it again\n"
    assert (single.returncode, single.stdout, single.stderr) == (1, "", message)
    assert (several.returncode, several.stdout, several.stderr) == (1, "fulfil/r-2: resumed.\n", message)


@pytest.mark.parametrize("command", ["get", "history", "logs", "send-event", "facts", "outbox", "redeliver"])
def test_a_command_for_one_instance_refuses_several_ids(live: LiveServer, command: str) -> None:
    more = ("-t", "go") if command == "send-event" else ()

    done = live.run("instances", command, "-w", "fulfil", "-i", "a", "-i", "b", *more)

    assert done.returncode == 2
    assert "give one id" in plain(done.stderr)


def test_the_hint_for_the_next_page_keeps_the_options(live: LiveServer) -> None:
    for id_ in ("n-1", "n-2", "n-3"):
        live.create("greet", id_, '"ann"')
        live.until("greet", id_, "complete")

    page = live.ok("list", "-w", "greet", "--status", "complete", "--page-size", "1")

    [hint] = [line.strip() for line in page.splitlines() if line.startswith("  holdfast instances list")]
    assert re.fullmatch(r"holdfast instances list -w greet --status complete --page-size 1 --cursor \S+", hint)
    assert "There are more" in live.ok(*shlex.split(hint)[2:])


def test_cancel_lets_the_code_clean_up(live: LiveServer) -> None:
    live.create("renting", "x-1", '"ann"')
    live.until("renting", "x-1", "rent")

    assert live.ok("cancel", *instance_args("x-1", "renting")) == "renting/x-1: cancellation requested.\n"

    assert re.search(r"\nwhy +cancelled: CancelledError: no reason", live.until("renting", "x-1", "cancelled"))
    history = without_times(live.ok("history", *instance_args("x-1", "renting")))
    assert history[-5:] == [
        "TIME  cancellation requested",
        "TIME  rent failed: CancelledError: workflow code cancelled 'rent'",
        "TIME  release began",
        'TIME  release completed after A WHILE: "car"',
        "TIME  the run ended: cancelled: CancelledError: no reason given",
    ]
    again = live.run("instances", "cancel", *instance_args("x-1", "renting"))
    assert re.fullmatch(r"Request failed: 409 .* \(INSTANCE_TERMINAL\)\n", again.stderr)


def test_cancel_takes_a_reason_and_a_deadline(live: LiveServer) -> None:
    live.create("stubborn", "x-2")
    live.until("stubborn", "x-2", "sit")

    live.ok("cancel", *instance_args("x-2", "stubborn"), "--reason", 'out of "stock" é', "--deadline", "200ms")

    live.until("stubborn", "x-2", "terminated")
    entry = 'cancellation requested within 200 ms: out of "stock" é\n'
    assert entry in live.ok("history", *instance_args("x-2", "stubborn"))


@pytest.mark.parametrize("deadline", ["soon", "-1", "nan", "1 parsec"])
def test_an_invalid_deadline_exits_with_2(live: LiveServer, deadline: str) -> None:
    done = live.run("instances", "cancel", *instance_args("x-3", "stubborn"), "--deadline", deadline)

    assert done.returncode == 2
    assert "--deadline" in done.stderr


def test_an_instance_without_an_id_gets_one(live: LiveServer) -> None:
    [id_] = re.findall(r"^greet/(\S+) is created", live.ok("create", "-w", "greet", "--params", '"ann"'))

    live.until("greet", id_, "complete")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["list", "-w", "nope"], "404 .*(WORKFLOW_NOT_FOUND)"),
        (["list", "-w", "greet", "--cursor", "x"], "400 .*(INVALID_CURSOR)"),
        (["get", "-w", "greet", "-i", "nope"], "404 .*(INSTANCE_NOT_FOUND)"),
        (["get", "-w", "greet", "-i", "no/../pe"], "4.. .*"),
        (["logs", "-w", "greet", "-i", "nope", "--follow"], "404 .*(INSTANCE_NOT_FOUND)"),
        (["create", "-w", "greet", "--params", "5"], "400 .*(WORKFLOW_PARAMS_INVALID)"),
        (["create", "-w", "greet", "--params", '{"a": 1, "a": 2}'], "400 .*"),
        (["create", "-w", "greet", "-i", "-x"], "400 .*(INVALID_INSTANCE_ID)"),
        (["send-event", "-w", "greet", "-i", "nope", "-t", "go"], "404 .*(INSTANCE_NOT_FOUND)"),
    ],
)
def test_a_refusal_by_the_server_is_one_line(live: LiveServer, arguments: list[str], error: str) -> None:
    done = live.run("instances", *arguments)

    assert (done.returncode, done.stdout) == (1, "")
    pattern = error.replace("(", r"\(").replace(")", r"\)")
    assert re.fullmatch(f"Request failed: {pattern}.*\n", done.stderr), done.stderr


def test_an_id_is_used_only_once(live: LiveServer) -> None:
    live.create("greet", "once", '"ann"')

    done = live.run("instances", "create", *instance_args("once", "greet"), "--params", '"ann"')

    assert re.fullmatch(r"Request failed: 409 .*\(INSTANCE_ID_ALREADY_EXISTS\)\n", done.stderr)


# --- terminals and pipes


def test_output_on_a_terminal_is_coloured_and_complete(live: LiveServer) -> None:
    start_order(live, "o-" + "long" * 20)
    terminal, process_side = pty.openpty()
    command = [str(HOLDFAST), "instances", "list", "-w", "fulfil", "-b", live.base]
    environment = clean_environment(TERM="xterm-256color", COLUMNS="60")

    process = subprocess.Popen(command, stdout=process_side, env=environment)
    os.close(process_side)
    seen = ""
    while part := read(terminal):
        seen += part
    os.close(terminal)

    assert process.wait(60) == 0
    assert "\x1b[" in seen
    assert max(map(len, plain(seen).splitlines())) <= 60
    assert "long" * 20 in re.sub(r"\s+|waiting|active|[\d:.-]{4,}", "", plain(seen))


def read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # the other side is closed
        return ""


def test_piped_output_is_plain_and_never_truncated(live: LiveServer) -> None:
    done = live.run("instances", "list", "-w", "fulfil", COLUMNS="20")

    assert "\x1b" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


def test_a_closed_pipe_ends_the_command_without_an_error_message(live: LiveServer) -> None:
    live.create("chatters", "c-2", "500")
    live.until("chatters", "c-2", "complete")
    command = [str(HOLDFAST), "instances", "logs", *instance_args("c-2", "chatters"), "-b", live.base]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    with process.stderr:
        assert process.stderr.read() == ""
    process.wait(60)
