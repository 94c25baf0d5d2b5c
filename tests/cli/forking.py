"""``holdfast`` commands in processes that are forked from a process that has imported everything.

A command spends half a second on imports, and the tests run hundreds of commands. This file, run as a program (the
fork server), imports the modules once and forks for each request; the child takes the arguments, directory, environment
and output files of the command. The fork server has no threads and opens no files, so that forking is safe. It exits
when its input is closed.
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
_WARM_UP = ("instances", "list", "-w", "none", "-b", "http://127.0.0.1:1", "--retries", "0")
"""A command that fails, after it has imported modules that other commands need."""
_TIMEOUT_S = 60


def run(arguments: tuple[str, ...], cwd: Path | None, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and capture its output, as ``subprocess.run`` does."""
    with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
        with ForkedCommand(arguments, cwd or Path.cwd(), env, Path(stdout.name), Path(stderr.name)) as command:
            code = command.wait(_TIMEOUT_S)
        output = stdout.read().decode(), stderr.read().decode()
    return subprocess.CompletedProcess([str(HOLDFAST), *arguments], code, *output)


class ForkedCommand:
    """A command in a forked process, with the methods of ``subprocess.Popen`` that tests use."""

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
        """``session``: start the command in a new session."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(_TIMEOUT_S)
        self._connection.connect(_fork_server())
        request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "session": session}
        files = {"stdout": str(stdout), "stderr": str(stderr)}
        self._connection.sendall(json.dumps(request | files).encode() + b"\n")
        self._replies = self._connection.makefile()
        self.pid = int(self._replies.readline())

    def __enter__(self) -> ForkedCommand:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(HOLDFAST), timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self.returncode = int(self._replies.readline())
        self.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self._replies.close()
        self._connection.close()


@cache
def _fork_server() -> str:
    """Start the fork server of this test process and return the path of its socket."""
    folder = tempfile.mkdtemp(prefix="holdfast-cli-")
    path = str(Path(folder) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.communicate(timeout=300)
        Path(path).unlink(missing_ok=True)
        Path(folder).rmdir()

    atexit.register(end)
    return path


# --- the fork server


def _serve_forks(path: str) -> None:
    """Fork for each request. Returns only in a child that runs a command; the server exits when its input is closed."""
    _warm_up()
    commands: dict[int, tuple[int, socket.socket]] = {}
    """The pid and the connection of each running command, by the descriptor that is ready when it has ended."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(100)
        os.write(1, b"ready\n")
        while True:
            watched: list[Any] = [0, listening, *commands]
            ready, _, _ = select.select(watched, [], [])
            if 0 in ready:
                os._exit(0)
            for descriptor in commands.keys() & ready:
                _send_exit_code(*commands.pop(descriptor))
                os.close(descriptor)
            if listening in ready:
                connection, _ = listening.accept()
                request = json.loads(connection.makefile().readline())
                pid = os.fork()
                if pid == 0:
                    for descriptor, (_, other) in commands.items():
                        os.close(descriptor)
                        other.close()
                    listening.close()
                    connection.close()
                    _apply(request)
                    return
                connection.sendall(f"{pid}\n".encode())
                commands[os.pidfd_open(pid)] = pid, connection


def _send_exit_code(pid: int, connection: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with connection, suppress(OSError):  # the test may have ended
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _warm_up() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    # The tree of commands is built once, and not by each command.
    typer = importlib.import_module("typer.main")
    typer.get_command = cache(typer.get_command)  # type: ignore[attr-defined]
    sys.argv = [str(HOLDFAST), *_WARM_UP]
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


def _apply(request: dict[str, Any]) -> None:
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
    _serve_forks(sys.argv[1])
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
    os._exit(code)  # skips the slow teardown of all those modules
