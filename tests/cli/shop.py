"""A directory with a user's app, and ``holdfast`` commands that run there as real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from holdfast import Holdfast

from .forking import ForkedCommand
from .running import HOLDFAST, run_command

APP = '''
"""Steps create a file when they begin, and wait until the test allows them to end."""

import asyncio
import os
import time
from pathlib import Path

from holdfast import Context, Holdfast, WorkerConfig

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", worker=WorkerConfig(lease="30 seconds", poll="200 ms"))
not_an_app = 7
inside = 0

if (HERE / "broken").exists():
    os._exit(3)


def mark(step, name):
    (HERE / f"{step}.{name}.{os.getpid()}").touch()


async def until_allowed(name):
    mark("first", name)
    while not (HERE / f"go.{name}").exists():
        await asyncio.sleep(0.005)
    return os.getpid()


async def meet(name):
    mark("meets", name)
    while len({path.suffix for path in HERE.glob("meets.*")}) < 2:
        await asyncio.sleep(0.005)
    return os.getpid()


async def count():
    global inside
    inside += 1
    most = inside
    await asyncio.sleep(0.01)
    most = max(most, inside)
    inside -= 1
    return most


async def block(name):
    mark("blocks", name)
    time.sleep(60)


@app.workflow
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


@app.workflow
async def two_steps(ctx: Context, name: str) -> int:
    first = await ctx.do("first", until_allowed, name)
    await ctx.do("second", mark, "second", name)
    return first


@app.workflow
async def meets(ctx: Context, name: str) -> int:
    return await ctx.do("meet", meet, name)


@app.workflow
async def counts(ctx: Context) -> int:
    return await ctx.do("count", count)


@app.workflow
async def blocks(ctx: Context, name: str) -> None:
    await ctx.do("block", block, name)
'''


class Command:
    """A ``holdfast`` process that runs until a signal stops it."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedCommand, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        """The standard error of the process and its children."""
        return self._log.read_text()

    def workers(self) -> list[int]:
        """Pids of the worker processes that have started, in that order."""
        return [int(pid) for pid in re.findall(r"worker (\d+) started", self.output)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def wait_for_output(self, text: str, times: int = 1) -> None:
        await until(
            lambda: self.output.count(text) >= times, lambda: f"{text!r} is missing in the output:\n{self.output}"
        )

    async def wait_for_end(self, seconds: float = 120) -> int:
        await until(
            lambda: self.process.poll() is not None, lambda: f"the process does not end:\n{self.output}", seconds
        )
        return self.process.wait()

    def close(self) -> None:
        """Kill the process and its workers if they still run."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        for pid in self.workers():
            with suppress(ProcessLookupError, FileNotFoundError):
                if b"holdfast" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


class Shop:
    """The directory, the commands started in it, and checks of its files and its database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.commands: list[Command] = []
        (folder / "shop.py").write_text(APP)

    def worker(self, *arguments: str, target: str = "shop:app", cwd: Path | None = None) -> Command:
        """Start a worker in a new session, so that signals to its process group reach no other process."""
        log = self._log()
        process = ForkedCommand(
            ("worker", target, *arguments), cwd or self.folder, os.environ, Path(os.devnull), log, session=True
        )
        self.commands.append(Command(process, log))
        return self.commands[-1]

    def worker_from_the_path(self) -> Command:
        """Start the installed program instead of a forked process."""
        log = self._log()
        with log.open("wb") as stderr:
            command = [str(HOLDFAST), "worker", "shop:app"]
            process = subprocess.Popen(command, cwd=self.folder, stderr=stderr, start_new_session=True)
        self.commands.append(Command(process, log))
        return self.commands[-1]

    def _log(self) -> Path:
        log = self.folder / f"log-{len(self.commands)}"
        log.touch()
        return log

    def holdfast(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        clean = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DATABASE_URL"}
        return run_command(arguments, self.folder, clean | env, forked=arguments[0] in ("migrate", "worker"))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Holdfast]:
        app = Holdfast(self.url)
        for name in ("greet", "two_steps", "meets", "counts", "blocks"):
            app.remote(name)
        async with app.connect():
            yield app

    def started_in(self, step: str, name: str = "*") -> list[int]:
        """Pids of the processes in which a step has begun."""
        return [int(path.suffix[1:]) for path in self.folder.glob(f"{step}.{name}.*")]

    async def wait_until_started(self, step: str, name: str = "*", times: int = 1) -> None:
        await until(lambda: len(self.started_in(step, name)) >= times, lambda: self.commands[-1].output)

    def allow(self, name: str) -> None:
        (self.folder / f"go.{name}").touch()

    def owned_tasks(self) -> int:
        """Number of tasks that a worker owns."""
        return int(self.query("SELECT count(*) FROM holdfast_task WHERE owner IS NOT NULL"))

    def query(self, sql: str) -> Any:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return connection.execute(sql).fetchone()[0]


async def until(condition: Callable[[], Any], message: Callable[[], str] | str, seconds: float = 60) -> None:
    """Wait for a condition, with a time limit."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, message if isinstance(message, str) else message()
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    """True if a process that is not a child of this one has ended; it may still be a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"
