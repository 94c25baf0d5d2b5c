"""``instances logs --follow``: every line once, until the end of the run, also when the server restarts."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .live import LiveServer, wait_for
from .running import HOLDFAST, clean_environment, plain


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path)
    live.start()
    yield live
    live.stop()


class FollowProcess:
    """The process of the command, and its output so far."""

    def __init__(
        self, live: LiveServer, id: str, *arguments: str, workflow: str = "talks", stderr: int | None = None
    ) -> None:
        command = ["instances", "logs", "-w", workflow, "-i", id, "--follow", "--retry-delay", "0.1", *arguments]
        self.process = subprocess.Popen(
            [str(HOLDFAST), *command, "-b", live.base],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=clean_environment(),
        )
        self._parts: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self._parts.extend(self.process.stdout)

    @property
    def lines(self) -> list[str]:
        """The lines that the workflow has logged, without times and replayed lines."""
        return re.findall(r"workflow  (.*)$", "".join(self._parts), re.MULTILINE)

    def wait_for_lines(self, *lines: str) -> None:
        wait_for(lambda: "\n".join(self.lines), lambda seen: seen == "\n".join(lines))

    def wait_for_end(self) -> int:
        code = self.process.wait(60)
        self._reader.join(60)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait_for_end()


@pytest.fixture
def closing() -> Iterator[list[FollowProcess]]:
    followings: list[FollowProcess] = []
    yield followings
    for following in followings:
        following.close()


def go(live: LiveServer, id: str) -> None:
    live.send("talks", id, "go")


def test_lines_are_shown_when_written_and_following_ends_with_the_run(
    live: LiveServer, closing: list[FollowProcess]
) -> None:
    live.create("talks", "t", "2")
    closing.append(following := FollowProcess(live, "t"))

    following.wait_for_lines("line 0")
    go(live, "t")
    following.wait_for_lines("line 0", "line 1")
    assert following.process.poll() is None
    go(live, "t")

    assert following.wait_for_end() == 0
    assert following.lines == ["line 0", "line 1", "the last line"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_of_the_server_loses_and_repeats_no_line(
    live: LiveServer, closing: list[FollowProcess], number: signal.Signals
) -> None:
    live.create("talks", "t", "4")
    closing.append(following := FollowProcess(live, "t", "--retries", "0"))
    go(live, "t")
    following.wait_for_lines("line 0", "line 1")

    live.stop(number)
    live.start()
    go(live, "t")
    go(live, "t")
    following.wait_for_lines(*(f"line {n}" for n in range(4)))
    go(live, "t")

    assert following.wait_for_end() == 0
    assert following.lines == [*(f"line {n}" for n in range(4)), "the last line"]


def test_an_outage_of_the_server_is_reported_on_a_terminal(live: LiveServer, closing: list[FollowProcess]) -> None:
    terminal, process_side = pty.openpty()
    live.create("talks", "t", "1")
    closing.append(following := FollowProcess(live, "t", "--retries", "0", stderr=process_side))
    os.close(process_side)
    following.wait_for_lines("line 0")

    live.stop()
    note = plain(os.read(terminal, 1000).decode())
    live.start()
    go(live, "t")

    assert following.wait_for_end() == 0
    assert "waiting for the server (Ctrl-C ends this)" in note
    os.close(terminal)


def test_following_continues_with_the_successor_of_a_restarted_run(
    live: LiveServer, closing: list[FollowProcess]
) -> None:
    live.create("talks", "t", "1")
    closing.append(following := FollowProcess(live, "t"))
    closing.append(first_only := FollowProcess(live, "t", "--run", "0"))
    following.wait_for_lines("line 0")
    first_only.wait_for_lines("line 0")

    live.ok("restart", "-w", "talks", "-i", "t")
    following.wait_for_lines("line 0", "line 0")
    go(live, "t")

    assert following.wait_for_end() == 0
    assert following.lines == ["line 0", "line 0", "the last line"]
    assert first_only.wait_for_end() == 0
    assert first_only.lines == ["line 0"]


def test_following_starts_after_a_cursor_and_keeps_its_filters(live: LiveServer, closing: list[FollowProcess]) -> None:
    live.create("talks", "t", "1")
    go(live, "t")
    live.until("talks", "t", "complete")
    page = live.ok("logs", "-w", "talks", "-i", "t", "--page-size", "1")
    [cursor] = re.findall(r"--logs-cursor (\S+)", page)

    closing.append(after_cursor := FollowProcess(live, "t", "--logs-cursor", cursor))
    closing.append(filtered := FollowProcess(live, "t", "--log-level", "warn"))

    assert after_cursor.wait_for_end() == 0
    assert after_cursor.lines == ["the last line"]
    assert filtered.wait_for_end() == 0
    assert filtered.lines == []


def test_ctrl_c_ends_following(live: LiveServer, closing: list[FollowProcess]) -> None:
    live.create("talks", "t", "1")
    closing.append(following := FollowProcess(live, "t", stderr=subprocess.DEVNULL))
    following.wait_for_lines("line 0")

    following.process.send_signal(signal.SIGINT)

    assert following.wait_for_end() == 130


def test_a_server_that_is_down_at_the_start_is_an_error(live: LiveServer, closing: list[FollowProcess]) -> None:
    live.create("talks", "t", "1")
    live.stop()
    closing.append(following := FollowProcess(live, "t", "--retries", "0", stderr=subprocess.DEVNULL))

    assert following.wait_for_end() == 1
    live.start()
