"""``instances logs --follow``: every line once, until the end of the run, whatever the server goes through."""

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

from .live import Live, wait_for
from .running import HOLDFAST, clean_environment, plain


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    live = Live(tmp_path)
    live.start()
    yield live
    live.stop()


class Following:
    """The command, and what it has written so far."""

    def __init__(
        self, live: Live, id: str, *arguments: str, workflow: str = "talks", stderr: int | None = None
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
        """What the workflow said, without times and replays."""
        return re.findall(r"workflow  (.*)$", "".join(self._parts), re.MULTILINE)

    def shows(self, *lines: str) -> None:
        wait_for(lambda: "\n".join(self.lines), lambda seen: seen == "\n".join(lines))

    def ends(self) -> int:
        code = self.process.wait(30)
        self._reader.join(30)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ends()


@pytest.fixture
def closing() -> Iterator[list[Following]]:
    followings: list[Following] = []
    yield followings
    for following in followings:
        following.close()


def go(live: Live, id: str) -> None:
    live.send("talks", id, "go")


def test_lines_are_shown_as_they_come_and_it_ends_with_the_run(live: Live, closing: list[Following]) -> None:
    live.create("talks", "t", "2")
    closing.append(following := Following(live, "t"))

    following.shows("line 0")
    go(live, "t")
    following.shows("line 0", "line 1")
    assert following.process.poll() is None
    go(live, "t")

    assert following.ends() == 0
    assert following.lines == ["line 0", "line 1", "the last line"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_of_the_server_loses_and_repeats_nothing(
    live: Live, closing: list[Following], number: signal.Signals
) -> None:
    live.create("talks", "t", "4")
    closing.append(following := Following(live, "t", "--retries", "0"))
    go(live, "t")
    following.shows("line 0", "line 1")

    live.stop(number)
    live.start()
    go(live, "t")
    go(live, "t")
    following.shows(*(f"line {n}" for n in range(4)))
    go(live, "t")

    assert following.ends() == 0
    assert following.lines == [*(f"line {n}" for n in range(4)), "the last line"]


def test_someone_who_watches_is_told_that_the_server_is_away(live: Live, closing: list[Following]) -> None:
    terminal, its_side = pty.openpty()
    live.create("talks", "t", "1")
    closing.append(following := Following(live, "t", "--retries", "0", stderr=its_side))
    os.close(its_side)
    following.shows("line 0")

    live.stop()
    told = plain(os.read(terminal, 1000).decode())
    live.start()
    go(live, "t")

    assert following.ends() == 0
    assert "waiting for the server (Ctrl-C ends this)" in told
    os.close(terminal)


def test_a_run_that_is_restarted_is_followed_into_the_next(live: Live, closing: list[Following]) -> None:
    live.create("talks", "t", "1")
    closing.append(following := Following(live, "t"))
    closing.append(first_only := Following(live, "t", "--run", "0"))
    following.shows("line 0")
    first_only.shows("line 0")

    live.ok("restart", "-w", "talks", "-i", "t")
    following.shows("line 0", "line 0")
    go(live, "t")

    assert following.ends() == 0
    assert following.lines == ["line 0", "line 0", "the last line"]
    assert first_only.ends() == 0
    assert first_only.lines == ["line 0"]


def test_it_begins_behind_a_cursor_and_keeps_its_filters(live: Live, closing: list[Following]) -> None:
    live.create("talks", "t", "1")
    go(live, "t")
    live.until("talks", "t", "complete")
    page = live.ok("logs", "-w", "talks", "-i", "t", "--page-size", "1")
    [cursor] = re.findall(r"--logs-cursor (\S+)", page)

    closing.append(behind := Following(live, "t", "--logs-cursor", cursor))
    closing.append(filtered := Following(live, "t", "--log-level", "warn"))

    assert behind.ends() == 0
    assert behind.lines == ["the last line"]
    assert filtered.ends() == 0
    assert filtered.lines == []


def test_ctrl_c_ends_it(live: Live, closing: list[Following]) -> None:
    live.create("talks", "t", "1")
    closing.append(following := Following(live, "t", stderr=subprocess.DEVNULL))
    following.shows("line 0")

    following.process.send_signal(signal.SIGINT)

    assert following.ends() == 130


def test_a_server_that_was_never_there_is_not_waited_for(live: Live, closing: list[Following]) -> None:
    live.create("talks", "t", "1")
    live.stop()
    closing.append(following := Following(live, "t", "--retries", "0", stderr=subprocess.DEVNULL))

    assert following.ends() == 1
    live.start()
