"""``holdfast demo`` as a user runs it: its output is true, and an error is one line."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

HOLDFAST = Path(sys.executable).parent / "holdfast"


@dataclass(frozen=True)
class FinishedDemo:
    done: subprocess.CompletedProcess[str]
    seconds: float
    processor_seconds: float
    file: Path

    @property
    def text(self) -> str:
        return self.done.stdout


def holdfast(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(HOLDFAST), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> FinishedDemo:
    """One complete demo, piped; several tests check its output."""
    file = tmp_path_factory.mktemp("demo") / "demo.db"
    began, before = time.monotonic(), _processor_seconds()
    done = holdfast("demo", "--file", file)
    return FinishedDemo(done, time.monotonic() - began, _processor_seconds() - before, file)


def _processor_seconds() -> float:
    """Processor time of the ended processes that this one, or an ended one, started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- a complete demo


def test_the_demo_succeeds_within_30_seconds(demo: FinishedDemo) -> None:
    """On a machine without other work: its processes use few seconds of processor time, and wait for little else."""
    assert demo.done.returncode == 0, demo.done
    assert demo.done.stderr == ""
    assert demo.processor_seconds < 15
    assert demo.seconds < 120


def test_piped_output_is_plain_text(demo: FinishedDemo) -> None:
    assert "\x1b" not in demo.text
    assert "\r" not in demo.text


def test_a_real_process_was_killed_and_another_took_over(demo: FinishedDemo) -> None:
    first, second = re.findall(r"worker (\d)  ready: process (\d+)", demo.text)

    assert f"kill -9 {first[1]}: worker 1 dies" in demo.text
    assert (first[0], second[0]) == ("1", "2")
    for pid in (first[1], second[1]):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_finished_steps_were_not_run_again(demo: FinishedDemo) -> None:
    ran = dict(re.findall(r"^  ([a-z ]+?) +ran (\d)×", demo.text, re.MULTILINE))  # noqa: RUF001

    assert ran == {"reserve": "1", "charge": "2", "print label": "1", "pack": "2", "ship": "1"}
    after = demo.text.split("worker 2  ready")[1]
    assert re.findall(r"worker 2  ([a-z ]+): running", after) == ["pack", "ship"]
    assert demo.text.count("  yes  ") == 4
    assert "NO " not in demo.text


def test_the_order_is_complete_in_the_named_file(demo: FinishedDemo) -> None:
    assert str(demo.file) in demo.text.splitlines()[-2]
    with closing(sqlite3.connect(demo.file)) as connection:
        runs = connection.execute("SELECT instance_id, status FROM holdfast_run").fetchall()
        attempts = dict(connection.execute("SELECT key, attempts FROM holdfast_fact WHERE state = 0 AND kind = 'do'"))
        left = connection.execute("SELECT count(*) FROM holdfast_task").fetchone()

    assert runs == [("order-o-1", "complete")]
    assert attempts == {"reserve": 1, "charge": 2, "print label": 1, "pack": 2, "ship": 1}
    assert left == (0,)


def test_the_position_of_the_wait_is_in_the_code_of_the_order(demo: FinishedDemo) -> None:
    assert re.search(r"waiting for an event .* at \S*demo_order\.py:\d+", demo.text)


def test_the_demo_ends_with_the_command_of_the_dashboard(demo: FinishedDemo) -> None:
    assert demo.text.splitlines()[-1] == "In a browser, with 5,000 runs: holdfast dev --example"


def test_in_a_terminal_the_link_of_the_order_is_served(demo: FinishedDemo) -> None:
    program = "from pathlib import Path; from rich.console import Console; from holdfast.cli import demo_dashboard as d"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(
            sys.executable, [sys.executable, "-c", f"{program}; d.offer(Path({str(demo.file)!r}), Console(width=200))"]
        )
    seen = ""
    while "API " not in seen:  # the server has started
        seen += os.read(terminal, 10_000).decode()
        if "Ctrl-C ends the demo" in seen and "\r\nOpen" not in seen:
            os.write(terminal, b"\n")
    [page] = re.findall(r"http://127.0.0.1:\d+/(?=#/run/demo.order/order-o-1)", seen)
    with urllib.request.urlopen(f"{page}_api/demo.order/instances/order-o-1", timeout=300) as response:
        shown = json.load(response)
    os.killpg(pid, signal.SIGTERM)  # a shell that runs the tests in the background ignores the signal of Ctrl-C
    os.waitpid(pid, 0)
    os.close(terminal)

    assert shown["details"]["status"] == "complete"


def test_an_interrupted_demo_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    """Ctrl-C, with the live table on."""
    terminal, process_side = pty.openpty()
    file = tmp_path / "demo.db"
    process = subprocess.Popen(
        [str(HOLDFAST), "demo", "--file", str(file), "--no-keep"],
        stdout=process_side,
        stderr=process_side,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(process_side)

    seen = read_until(terminal, "reserve: running")
    process.send_signal(signal.SIGINT)
    seen += read_until(terminal, None)

    assert process.wait(60) == 130
    assert "executions" in seen  # the table
    assert "stopped" in seen
    assert "Traceback" not in seen
    assert list(tmp_path.iterdir()) == []
    [pid] = re.findall(r"ready: process (\d+)", seen)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_closed_pipe_ends_the_demo_without_an_error_message(tmp_path: Path) -> None:
    """As in ``holdfast demo | head -1``."""
    command = [str(HOLDFAST), "demo", "--file", str(tmp_path / "demo.db"), "--no-keep"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(60) == 1
    assert list(tmp_path.iterdir()) == []


def read_until(terminal: int, text: str | None) -> str:
    """The output up to and including ``text`` (None: to the end), without colours."""
    seen = ""
    while text is None or text not in seen:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            part = b""
        if not part:
            break
        seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part.decode(errors="replace"))
    return seen


# --- errors


def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("dear reader, this is not a database")

    refused(holdfast("demo", "--file", file), "notes.txt is not a database")
    assert file.read_text() == "dear reader, this is not a database"


def test_an_existing_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    before = file.read_bytes()

    refused(holdfast("demo", "--file", file), "mine.db exists already")
    assert file.read_bytes() == before


def test_a_path_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    refused(holdfast("demo", "--file", tmp_path / "nowhere" / "demo.db"), "does not exist")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    refused(holdfast("demo", "--file", tmp_path), "directory")


def test_a_path_that_cannot_be_written_is_refused() -> None:
    refused(holdfast("demo", "--file", "/proc/demo.db"), "/proc/demo.db cannot be created")


def refused(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert done.returncode == 1
    assert re.fullmatch(r"holdfast: .+\n", done.stderr), done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize("arguments", [["demo", "--nope"], ["demo", "extra"], ["nope"], ["demo", "--file"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    done = holdfast(*arguments)

    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


# --- help


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["demo", "--help"]])
def test_help_has_examples(arguments: list[str]) -> None:
    done = holdfast(*arguments)

    assert done.returncode == 0
    assert "\nExamples:\n" in done.stdout.replace("  Examples:", "Examples:")
    assert "holdfast demo --file" in done.stdout


def test_the_version_is_printed() -> None:
    done = holdfast("--version")

    assert (done.returncode, done.stdout) == (0, "holdfast 0.1.0\n")
