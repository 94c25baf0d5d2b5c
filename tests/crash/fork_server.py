"""A fork server: a process that has all modules imported and forks a test process in milliseconds.

The server process (this file, run as a program) has no threads and opens no database, so that forking it is safe. It
reads one JSON request per line and replies with pids and exit codes. When its input ends, it kills its children and
exits.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


@dataclass(slots=True)
class ForkedProcess:
    """A process that the fork server forked."""

    pid: int
    log: Path
    _exits: dict[int, int] = field(repr=False)

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._exits.get(self.pid)

    @property
    def alive(self) -> bool:
        return self.code is None

    def signal(self, number: int) -> None:
        if self.alive:
            with suppress(ProcessLookupError):  # the process has ended, and its exit code was not read yet
                os.kill(self.pid, number)

    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class ForkServer:
    """Starts the server process and sends it requests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._exits: dict[int, int] = {}
        self._answers: dict[int, int] = {}
        self._changed = threading.Condition()
        self._asked = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def fork(self, target: str, **spec: Any) -> ForkedProcess:
        """Run ``module:function`` of this package in a new process, with ``spec`` as its arguments."""
        self._asked += 1
        log = self._folder / f"{target.partition(':')[2]}-{self._asked}.log"
        request = {"n": self._asked, "target": target, "log": str(log), "spec": spec}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: self._asked in self._answers, 60), "the fork server does not reply"
        return ForkedProcess(self._answers.pop(self._asked), log, self._exits)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(60)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "exit" in message:
                    self._exits[message["pid"]] = message["exit"]
                else:
                    self._answers[message["n"]] = message["pid"]
                self._changed.notify_all()


# --- the server process


def serve() -> None:
    sys.path.insert(0, str(_HERE.parent))
    for name in ("killer", "power", "program", "workload", "holdfast.app", "holdfast.store.sqlite"):
        importlib.import_module(name if "." in name else f"{_HERE.name}.{name}")
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _collect(alive)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                _fork(json.loads(line), alive, (woken, wake))
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _collect(alive: set[int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.discard(pid)
        _say({"pid": pid, "exit": os.waitstatus_to_exitcode(status)})


def _fork(request: dict[str, Any], alive: set[int], pipes: tuple[int, int]) -> None:
    pid = os.fork()
    if pid:
        alive.add(pid)
        _say({"n": request["n"], "pid": pid})
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in pipes:
            os.close(fd)
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        module, _, function = request["target"].partition(":")
        code = getattr(importlib.import_module(f"{_HERE.name}.{module}"), function)(**request["spec"]) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _say(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


if __name__ == "__main__":
    serve()
