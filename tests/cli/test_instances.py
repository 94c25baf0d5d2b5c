"""Every management command, run as a process against a real server and its worker."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from .live import Live
from .running import HOLDFAST, clean_environment, plain

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("live"))
    live.start()
    yield live
    assert live.stop() == 0


def of(id: str, workflow: str = "fulfil") -> tuple[str, ...]:
    return ("-w", workflow, "-i", id)


def start_order(live: Live, id: str) -> None:
    live.create("fulfil", id, f'{{"id": "{id}", "total": 125}}')


def approve(live: Live, id: str) -> str:
    return live.ok("send-event", *of(id), "-t", "approval", "--payload", '{"by": "ann"}')


def untimed(text: str) -> list[str]:
    """Its lines, with times replaced."""
    text = re.sub(TIME, "TIME", text)
    return re.sub(r"after( \d+ (min|s|ms))+", "after A WHILE", text).splitlines()


# --- looking


def test_workflows_are_listed_in_their_order(live: Live) -> None:
    done = live.run("workflows", "list")

    names = ["fulfil", "greet", "refuses", "hopeless", "talks", "chatters", "renting", "stubborn", "helper", "boss"]
    assert done.stdout.split() == ["WORKFLOW", *names]


def test_an_order_from_its_start_to_its_end(live: Live) -> None:
    made = live.ok("create", *of("o-1"), "--params", '{"id": "o-1", "total": 125}')
    assert made == "fulfil/o-1 is created: active\n  holdfast instances get -w fulfil -i o-1\n"

    waits = live.until("fulfil", "o-1", "approval")
    assert waits.startswith("fulfil/o-1\nstatus     waiting\nwhy        waiting for an event of type 'approval'")
    assert re.search(rf"^step       approval \(waitForEvent\), waiting, until {TIME} UTC$", waits, re.MULTILINE)
    for name in ("created", "started", "updated"):
        assert re.search(rf"^{name} +{TIME} UTC$", waits, re.MULTILINE)
    assert "125" not in waits

    assert approve(live, "o-1") == "event approval is sent to fulfil/o-1, which was waiting\n"
    live.until("fulfil", "o-1", "complete")
    full = live.ok("get", *of("o-1"), "--full")
    assert '\nInput:\n{\n  "id": "o-1",\n  "total": 125\n}\n' in full
    assert '\nOutput:\n{\n  "payment": "payment-o-1",\n  "by": "ann"\n}\n' in full


def test_a_history_reads_like_a_story(live: Live) -> None:
    start_order(live, "story")
    live.until("fulfil", "story", "approval")
    approve(live, "story")
    live.until("fulfil", "story", "complete")

    told = untimed(live.ok("history", *of("story"), "--include-logs"))

    assert told == [
        "fulfil/story, run 0: complete; times are UTC",
        "TIME  the run began",
        'TIME  log info   workflow  order received  {"total": 125}',
        "TIME  charge began",
        'TIME  charge completed on attempt 2 of 3 after A WHILE: "payment-story"',
        "TIME  cool off: sleeps until TIME",
        "TIME  cool off: slept",
        "TIME  approval: waits for an event of type approval until TIME",
        'TIME  event approval came: {"by": "ann"} (taken by approval)',
        "TIME  approval: got its event",
        "TIME  the run ended: complete",
    ]
    assert untimed(live.ok("history", *of("story"), "--include-logs", "--order", "desc")) == told[:1] + told[:0:-1]
    without = [line for line in told if "log info" not in line]
    assert untimed(live.ok("history", *of("story"))) == without
    assert untimed(live.ok("history", *of("story"), "--include-logs", "--log-level", "warn")) == without
    assert untimed(live.ok("history", *of("story"), "--include-logs", "--log-category", "mood")) == without


def test_a_history_can_be_read_page_by_page(live: Live) -> None:
    start_order(live, "pages")
    live.until("fulfil", "pages", "approval")

    first = live.ok("history", *of("pages"), "--page-size", "2")
    [cursor] = re.findall(r"--steps-cursor (\S+)", first)
    second = live.ok("history", *of("pages"), "--page-size", "2", "--steps-cursor", cursor)

    assert "charge began" in first
    assert "approval: waits" not in first
    assert "charge began" not in second
    assert "the run began" not in first + second
    assert "approval: waits" in second
    assert "--steps-cursor" not in second


def test_a_retry_that_is_due_later_is_told(live: Live) -> None:
    live.create("hopeless", "h-1")

    shown = live.until("hopeless", "h-1", "waiting")
    told = untimed(live.ok("history", *of("h-1", "hopeless")))

    assert "waiting to retry step 'call' after failed attempt 1 of 6 (ConnectionError: nobody is there)" in shown
    assert re.search(r"call \(do\), waiting, attempt 1 of 6, tries again at .* UTC; ConnectionError: nobody", shown)
    assert "TIME  call failed on attempt 1 of 6: ConnectionError: nobody is there; tries again at TIME" in told
    assert told[-1].startswith("Now: waiting to retry step 'call'")


def test_errors_are_shown_wherever_one_looks(live: Live) -> None:
    live.create("refuses", "r-1")

    shown = live.until("refuses", "r-1", "errored")
    listed = live.ok("list", "-w", "refuses")
    told = live.ok("history", *of("r-1", "refuses"))

    assert re.search(r"^error +CardStolen: the card is stolen$", shown, re.MULTILINE)
    assert re.search(rf"^r-1 +errored +{TIME} +CardStolen: the card is stolen$", listed, re.MULTILINE)
    assert "the run ended: errored: CardStolen: the card is stolen" in told


def test_tracebacks_are_shown_by_get_and_by_a_full_history(live: Live) -> None:
    live.create("refuses", "r-2")
    live.create("hopeless", "h-2")

    shown = live.until("refuses", "r-2", "errored")
    told = live.ok("history", *of("r-2", "refuses"), "--full")
    retrying = live.until("hopeless", "h-2", "waiting")
    told_of_retry = live.ok("history", *of("h-2", "hopeless"), "--full")

    source = 'raise NonRetryableError("the card is stolen", name="CardStolen")'
    assert "\n\nTraceback (most recent call last):\n" in shown
    assert source in shown
    assert source in told
    assert source not in live.ok("history", *of("r-2", "refuses"))
    assert "ConnectionError: nobody is there" in retrying.partition("\ncall:\nTraceback")[2]
    assert "Traceback (most recent call last):" in told_of_retry


def test_logs_are_filtered_and_cannot_fake_lines(live: Live) -> None:
    live.create("refuses", "r-3")
    live.until("refuses", "r-3", "errored")

    lines = untimed(live.ok("logs", *of("r-3", "refuses"), "--log-category", "mood"))

    assert lines == ["TIME  error  mood  cannot [bold]go[/bold]", "    with \\x1b[31mred"]
    assert untimed(live.ok("logs", *of("r-3", "refuses"), "--log-level", "error"))[:2] == lines
    assert live.ok("logs", *of("r-3", "refuses"), "--log-level", "debug") == ""


def test_many_logs_are_all_shown_or_page_by_page(live: Live) -> None:
    live.create("chatters", "c-1", "230")
    live.until("chatters", "c-1", "complete")

    everything = re.findall(r"line \d+", live.ok("logs", *of("c-1", "chatters")))
    backwards = re.findall(r"line \d+", live.ok("logs", *of("c-1", "chatters"), "--order", "desc"))
    page = live.ok("logs", *of("c-1", "chatters"), "--page-size", "100")
    [cursor] = re.findall(r"--logs-cursor (\S+)", page)
    rest = live.ok("logs", *of("c-1", "chatters"), "--page-size", "2", "--logs-cursor", cursor)
    followed = re.findall(r"line \d+", live.ok("logs", *of("c-1", "chatters"), "--follow"))

    assert everything == followed == backwards[::-1] == [f"line {n}" for n in range(230)]
    assert re.findall(r"line \d+", rest) == ["line 100", "line 101"]


def test_lists_are_filtered_and_paged(live: Live) -> None:
    for number in range(3):
        live.create("greet", f"g-{number}", '"ann"')
        live.until("greet", f"g-{number}", "complete")

    first = live.ok("list", "-w", "greet", "--page-size", "2", "--status", "complete")
    [again] = re.findall(r"^  holdfast (.*)$", first, re.MULTILINE)
    second = live.run(*again.split()).stdout

    assert re.findall(r"^g-\d", first, re.MULTILINE) == ["g-2", "g-1"]
    assert re.findall(r"^g-\d", second, re.MULTILINE) == ["g-0"]
    assert live.ok("list", "-w", "greet", "--status", "paused") == "No paused instances of greet.\n"


def test_lists_are_searched_by_attributes(live: Live) -> None:
    for number, customer in enumerate(["bob", "bob", "bob", "christine"]):
        live.create("renting", f"r-{number}", f'"{customer}"')
        live.until("renting", f"r-{number}", "rent")

    def found(*searches: str) -> list[str]:
        shown = live.ok("list", "-w", "renting", *(word for one in searches for word in ("--search", one)))
        return re.findall(r"^r-\d", shown, re.MULTILINE)

    assert found("customer=bob") == ["r-2", "r-1", "r-0"]
    assert found("customer=christine", "days=9", "tags=red") == ["r-3"]
    assert found("days=>3") == found("days=>=9") == found('customer=>"bob"') == ["r-3"]
    assert found("days=<=3", "tags=car") == ["r-2", "r-1", "r-0"]
    assert found('days="9"') == found("customer=bob", "days=9") == found("customer=a=b&c é") == []
    nobody = live.ok("list", "-w", "renting", "--search", "customer=nobody")
    assert nobody == "No instances of renting with these attributes.\n"


def test_a_search_goes_on_with_the_command_that_is_shown(live: Live) -> None:
    for number in range(3):
        live.create("renting", f"page-{number}", '"dora o\'neill"')
        live.until("renting", f"page-{number}", "rent")

    search = ("--search", "customer=dora o'neill", "--search", "days=>=12", "--search", "days=<1000")
    first = live.ok("list", "-w", "renting", "--page-size", "2", "--status", "waiting", *search)
    [again] = re.findall(r"^  holdfast (.*)$", first, re.MULTILINE)
    second = live.run(*shlex.split(again)).stdout

    assert re.findall(r"^page-\d", first, re.MULTILINE) == ["page-2", "page-1"]
    assert re.findall(r"^page-\d", second, re.MULTILINE) == ["page-0"]


@pytest.mark.parametrize("searches", [["customer"], ["=5"], [""], ["n=\udcff"]])
def test_a_search_written_wrong_is_a_mistake(live: Live, searches: list[str]) -> None:
    done = live.run("instances", "list", "-w", "renting", *(word for one in searches for word in ("--search", one)))

    assert (done.returncode, done.stdout) == (2, "")
    assert "--search" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_run_says_of_itself_and_its_family_is_shown(live: Live) -> None:
    live.create("renting", "say", '"eve"')
    says = live.until("renting", "say", "rent")
    assert '\nsearch     {"customer": "eve", "days": 3, "tags": ["car", "red"]}\n' in says
    assert '\nmemo       {"note": "for eve"}\n' in says

    live.create("boss", "1")
    boss = live.until("boss", "1", "go")
    assert re.search(r"\nchildren +helper/h-1 \(waiting\)\nlinks +helper/h-1\nmonitors +helper/h-1\n", boss)
    assert "waiting for child 'helper/h-1' to end" in boss
    helper = live.get("helper", "h-1")
    assert re.search(r"^why +waiting for message 'leave' since .*; linked to boss/1$", helper, re.MULTILINE)
    assert "\nstep       reply question from boss/1, completed\n" in helper
    assert "\nparent     boss/1\nlinks      boss/1\n" in helper
    assert not re.search("^(attempt|summary|children|monitors|search|memo)", helper, re.MULTILINE)


def test_a_history_tells_what_runs_did_to_each_other(live: Live) -> None:
    live.create("boss", "2")
    live.until("boss", "2", "go")
    live.send("boss", "2", "go")
    live.until("boss", "2", "complete")

    told = untimed(live.ok("history", *of("2", "boss")))
    for line in (
        "TIME  child helper/h-2 began",
        "TIME  link helper/h-2: done",
        "TIME  ask question of helper/h-2 began",
        'TIME  helper/h-2 answered: "yes"',
        'TIME  ask question of helper/h-2 completed after A WHILE: "yes"',
        "TIME  send leave to helper/h-2: done",
        "TIME  helper/h-2 ended: complete",
        'TIME  child helper/h-2 completed after A WHILE: "bye"',
    ):
        assert line in told, line
    assert "#" not in "".join(told)
    helped = untimed(live.ok("history", *of("h-2", "helper")))
    assert 'TIME  event question came from boss/2: {"may": "I"} (taken by listen question)' in helped
    assert "TIME  reply question from boss/2: done" in helped


# --- steering


def test_pause_and_resume(live: Live) -> None:
    start_order(live, "p-1")
    live.until("fulfil", "p-1", "approval")

    assert live.ok("pause", *of("p-1")) == "fulfil/p-1 is asked to pause.\n"
    assert "paused by a person" in live.until("fulfil", "p-1", "paused")
    approve(live, "p-1")
    assert "(not taken yet)" in live.ok("history", *of("p-1"))
    assert live.ok("resume", *of("p-1")) == "fulfil/p-1 may go on.\n"
    live.until("fulfil", "p-1", "complete")


def test_terminate_and_restart(live: Live) -> None:
    start_order(live, "t-1")
    live.until("fulfil", "t-1", "approval")

    assert live.ok("terminate", *of("t-1")) == "fulfil/t-1 is terminated.\n"
    assert "status       terminated" in live.get("fulfil", "t-1")
    refused = live.run("instances", "pause", *of("t-1"))
    assert refused.returncode == 1
    assert re.fullmatch(r"Request failed: 409 .* \(INSTANCE_TERMINAL\)\n", refused.stderr)

    assert live.ok("restart", *of("t-1")) == "fulfil/t-1 begins again.\n"
    shown = live.until("fulfil", "t-1", "approval")
    assert re.search(r"^run +1$", shown, re.MULTILINE)
    assert live.ok("history", *of("t-1"), "--run", "0").startswith("fulfil/t-1, run 0 (the current run is 1)")
    assert "Nothing has happened" in live.ok("history", *of("t-1"), "--run", "7")


def test_a_command_acts_on_every_id_and_says_what_became_of_each(live: Live) -> None:
    for id_ in ("m-1", "m-2", "m-3"):
        start_order(live, id_)
        live.until("fulfil", id_, "approval")
    live.ok("terminate", *of("m-2"))

    done = live.run("instances", "terminate", "-w", "fulfil", "-i", "m-1", "-i", "m-2", "-i", "nowhere", "-i", "m-3")

    assert done.returncode == 1
    assert done.stdout == "fulfil/m-1 is terminated.\nfulfil/m-3 is terminated.\n"
    ended, missing = done.stderr.splitlines()
    assert re.fullmatch(r"fulfil/m-2: Request failed: 409 .* \(INSTANCE_TERMINAL\)", ended)
    assert re.fullmatch(r"fulfil/nowhere: Request failed: 404 .* \(INSTANCE_NOT_FOUND\)", missing)

    twice = live.ok("restart", "-w", "fulfil", "-i", "m-1", "-i", "m-3", "-i", "m-1")
    assert twice == "fulfil/m-1 begins again.\nfulfil/m-3 begins again.\n"
    for id_ in ("m-1", "m-3"):
        assert re.search(r"^run +1$", live.until("fulfil", id_, "approval"), re.MULTILINE)


def test_a_run_that_has_ended_cannot_be_resumed(live: Live) -> None:
    start_order(live, "r-1")
    start_order(live, "r-2")
    live.ok("terminate", *of("r-1"))
    live.until("fulfil", "r-2", "approval")

    one = live.run("instances", "resume", *of("r-1"))
    two = live.run("instances", "resume", "-w", "fulfil", "-i", "r-1", "-i", "r-2")

    message = "fulfil/r-1 has ended (terminated) and cannot be resumed; restart begins it again\n"
    assert (one.returncode, one.stdout, one.stderr) == (1, "", message)
    assert (two.returncode, two.stdout, two.stderr) == (1, "fulfil/r-2 may go on.\n", message)


@pytest.mark.parametrize("command", ["get", "history", "logs", "send-event", "facts", "outbox", "redeliver"])
def test_a_command_about_one_instance_refuses_several(live: Live, command: str) -> None:
    more = ("-t", "go") if command == "send-event" else ()

    done = live.run("instances", command, "-w", "fulfil", "-i", "a", "-i", "b", *more)

    assert done.returncode == 2
    assert "give one id" in plain(done.stderr)


def test_the_hint_for_the_next_page_keeps_the_options(live: Live) -> None:
    for id_ in ("n-1", "n-2", "n-3"):
        live.create("greet", id_, '"ann"')
        live.until("greet", id_, "complete")

    page = live.ok("list", "-w", "greet", "--status", "complete", "--page-size", "1")

    [hint] = [line.strip() for line in page.splitlines() if line.startswith("  holdfast instances list")]
    assert re.fullmatch(r"holdfast instances list -w greet --status complete --page-size 1 --cursor \S+", hint)
    assert "There are more" in live.ok(*shlex.split(hint)[2:])


def test_cancel_lets_the_code_clean_up(live: Live) -> None:
    live.create("renting", "x-1", '"ann"')
    live.until("renting", "x-1", "rent")

    assert live.ok("cancel", *of("x-1", "renting")) == "renting/x-1 is asked to cancel.\n"

    assert re.search(r"\nwhy +cancelled: CancelledError: no reason", live.until("renting", "x-1", "cancelled"))
    told = untimed(live.ok("history", *of("x-1", "renting")))
    assert told[-5:] == [
        "TIME  somebody asked the run to cancel",
        "TIME  rent failed: CancelledError: workflow code cancelled 'rent'",
        "TIME  release began",
        'TIME  release completed after A WHILE: "car"',
        "TIME  the run ended: cancelled: CancelledError: no reason given",
    ]
    again = live.run("instances", "cancel", *of("x-1", "renting"))
    assert re.fullmatch(r"Request failed: 409 .* \(INSTANCE_TERMINAL\)\n", again.stderr)


def test_cancel_with_a_reason_and_a_deadline(live: Live) -> None:
    live.create("stubborn", "x-2")
    live.until("stubborn", "x-2", "sit")

    live.ok("cancel", *of("x-2", "stubborn"), "--reason", 'out of "stock" é', "--deadline", "200ms")

    live.until("stubborn", "x-2", "terminated")
    asked = 'somebody asked the run to cancel within 200 ms: out of "stock" é\n'
    assert asked in live.ok("history", *of("x-2", "stubborn"))


@pytest.mark.parametrize("deadline", ["soon", "-1", "nan", "1 parsec"])
def test_a_deadline_that_is_none_is_a_mistake(live: Live, deadline: str) -> None:
    done = live.run("instances", "cancel", *of("x-3", "stubborn"), "--deadline", deadline)

    assert done.returncode == 2
    assert "--deadline" in done.stderr


def test_an_instance_without_an_id_gets_one(live: Live) -> None:
    [made] = re.findall(r"^greet/(\S+) is created", live.ok("create", "-w", "greet", "--params", '"ann"'))

    live.until("greet", made, "complete")


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
def test_what_the_server_refuses(live: Live, arguments: list[str], error: str) -> None:
    done = live.run("instances", *arguments)

    assert (done.returncode, done.stdout) == (1, "")
    pattern = error.replace("(", r"\(").replace(")", r"\)")
    assert re.fullmatch(f"Request failed: {pattern}.*\n", done.stderr), done.stderr


def test_an_id_is_used_only_once(live: Live) -> None:
    live.create("greet", "once", '"ann"')

    done = live.run("instances", "create", *of("once", "greet"), "--params", '"ann"')

    assert re.fullmatch(r"Request failed: 409 .*\(INSTANCE_ID_ALREADY_EXISTS\)\n", done.stderr)


# --- where it is shown


def test_on_a_terminal_there_are_colours_and_nothing_is_lost(live: Live) -> None:
    start_order(live, "o-" + "long" * 20)
    terminal, its_side = pty.openpty()
    command = [str(HOLDFAST), "instances", "list", "-w", "fulfil", "-b", live.base]
    environment = clean_environment(TERM="xterm-256color", COLUMNS="60")

    process = subprocess.Popen(command, stdout=its_side, env=environment)
    os.close(its_side)
    seen = ""
    while part := read(terminal):
        seen += part
    os.close(terminal)

    assert process.wait(30) == 0
    assert "\x1b[" in seen
    assert max(map(len, plain(seen).splitlines())) <= 60
    assert "long" * 20 in re.sub(r"\s+|waiting|active|[\d:.-]{4,}", "", plain(seen))


def read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # the other side is closed
        return ""


def test_piped_it_is_plain_and_never_cut(live: Live) -> None:
    done = live.run("instances", "list", "-w", "fulfil", COLUMNS="20")

    assert "\x1b" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


def test_a_reader_that_goes_away_ends_it_quietly(live: Live) -> None:
    live.create("chatters", "c-2", "500")
    live.until("chatters", "c-2", "complete")
    command = [str(HOLDFAST), "instances", "logs", *of("c-2", "chatters"), "-b", live.base]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    with process.stderr:
        assert process.stderr.read() == ""
    process.wait(30)
