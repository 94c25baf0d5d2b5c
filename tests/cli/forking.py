"""``holdfast`` commands in processes that are forked from one which has everything imported.

Half a second of a command is spent on imports, and there are hundreds of commands. This file, run as a program, imports
them once and forks for each request; the child becomes the command: its arguments, directory, environment, output. It
has no threads and opens nothing, so that forking it is safe. It goes when its input ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any

HOLDFAST = Path(sys.executable).parent / "holdfast"
_MODULES = (
    "holdfast.cli.main",
    "holdfast.cli.migration",
    "holdfast.cli.serve",
    "holdfast.cli.server",
    "holdfast.cli.supervisor",
    "holdfast.cli.worker",
    "holdfast.http.api",
    "holdfast.store.postgres",
    "holdfast.store.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
_FIRST = ("instances", "list", "-w", "none", "-b", "http://127.0.0.1:1", "--retries", "0")
"""A command that fails, and imports on its way what the others need."""
_LONGEST_S = 60


def run(arguments: tuple[str, ...], cwd: Path | None, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command, run to its end, as ``subprocess.run`` would with its output captured."""
    with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
        with Forked(arguments, cwd or Path.cwd(), env, Path(stdout.name), Path(stderr.name)) as command:
            code = command.wait(_LONGEST_S)
        said = stdout.read().decode(), stderr.read().decode()
    return subprocess.CompletedProcess([str(HOLDFAST), *arguments], code, *said)


class Forked:
    """The command in a process of its own, with the methods of ``subprocess.Popen`` that tests use."""

    returncode: int | None = None

    def __init__(
        self,
        arguments: tuple[str, ...],
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        *,
        session: bool = False,
    ) -> None:
        """``session``: it leads a session of its own."""
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(_LONGEST_S)
        self._line.connect(_parent())
        request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "session": session}
        files = {"stdout": str(stdout), "stderr": str(stderr)}
        self._line.sendall(json.dumps(request | files).encode() + b"\n")
        self._said = self._line.makefile()
        self.pid = int(self._said.readline())

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(HOLDFAST), timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self.returncode = int(self._said.readline())
        self.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self._said.close()
        self._line.close()


@cache
def _parent() -> str:
    """Where it listens; started when it is needed, one for each test process."""
    folder = tempfile.mkdtemp(prefix="holdfast-cli-")
    path = str(Path(folder) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.communicate(timeout=20)
        Path(path).unlink(missing_ok=True)
        Path(folder).rmdir()

    atexit.register(end)
    return path


# --------------------------------------------------------------------------------------------------------- the process


def _command(path: str) -> None:
    """Returns in a child that is to be the command, or when there is nothing more to do: then it exits."""
    _warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(100)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([0, listening], [], [])
            if 0 in ready:
                os._exit(0)
            line, _ = listening.accept()
            with line:
                if os.fork() == 0:
                    listening.close()
                    _wait_for_one(line)
                    return


def _warm_up() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    sys.argv = [str(HOLDFAST), *_FIRST]
    with (
        Path(os.devnull).open("w") as nothing,
        redirect_stderr(nothing),
        redirect_stdout(nothing),
        suppress(SystemExit),
    ):
        importlib.import_module("holdfast.cli.main").main()
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


def _wait_for_one(line: socket.socket) -> None:
    """Returns in the child; the one between waits for it and tells its code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(line.makefile().readline())
    pid = os.fork()
    if pid:
        line.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    line.close()
    _become(request)


def _become(request: dict[str, Any]) -> None:
    for fd, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY),
        (2, request["stderr"], os.O_WRONLY),
    ):
        opened = os.open(name, flags | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(HOLDFAST), *request["arguments"]]


if __name__ == "__main__":
    _command(sys.argv[1])
    try:
        importlib.import_module("holdfast.cli.main").main()
        code = 0
    except SystemExit as ending:
        if ending.code is not None and not isinstance(ending.code, int):
            raise
        code = ending.code or 0
    if threading.active_count() > 1:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without taking all those modules apart
