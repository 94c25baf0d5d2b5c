"""A directory with a user's app in it, and ``holdfast`` commands run there as real processes."""

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

from .forking import Forked
from .running import HOLDFAST, run_to_its_end

APP = '''
"""Steps leave a mark when they begin, and wait for the test's word."""

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
    """A ``holdfast`` process that goes on until it is told to stop."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        """What it, and the processes it started, wrote to standard error."""
        return self._log.read_text()

    def workers(self) -> list[int]:
        """Pids of the worker processes that have started, in that order."""
        return [int(pid) for pid in re.findall(r"worker (\d+) started", self.said)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def says(self, text: str, times: int = 1) -> None:
        await until(lambda: self.said.count(text) >= times, lambda: f"it never said {text!r}:\n{self.said}")

    async def ends(self, seconds: float = 20) -> int:
        await until(lambda: self.process.poll() is not None, lambda: f"it does not end:\n{self.said}", seconds)
        return self.process.wait()

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        for pid in self.workers():
            with suppress(ProcessLookupError, FileNotFoundError):
                if b"holdfast" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


class Shop:
    """The directory, and what can be known of it from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.commands: list[Command] = []
        (folder / "shop.py").write_text(APP)

    def worker(self, *arguments: str, target: str = "shop:app", cwd: Path | None = None) -> Command:
        """In a session of its own, as in a terminal of its own: what is sent to all of it reaches no other process."""
        log = self._log()
        process = Forked(
            ("worker", target, *arguments), cwd or self.folder, os.environ, Path(os.devnull), log, session=True
        )
        self.commands.append(Command(process, log))
        return self.commands[-1]

    def worker_from_the_path(self) -> Command:
        """Not forked: the program that a user runs."""
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
        """A command that ends by itself."""
        clean = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DATABASE_URL"}
        return run_to_its_end(arguments, self.folder, clean | env, forked=arguments[0] in ("migrate", "worker"))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Holdfast]:
        app = Holdfast(self.url)
        for name in ("greet", "two_steps", "meets", "counts", "blocks"):
            app.remote(name)
        async with app.connect():
            yield app

    def began(self, step: str, name: str = "*") -> list[int]:
        """Pids of the processes in which a step began."""
        return [int(path.suffix[1:]) for path in self.folder.glob(f"{step}.{name}.*")]

    async def until_begun(self, step: str, name: str = "*", times: int = 1) -> None:
        await until(lambda: len(self.began(step, name)) >= times, lambda: self.commands[-1].said)

    def allow(self, name: str) -> None:
        (self.folder / f"go.{name}").touch()

    def held(self) -> int:
        """Runs that a worker has not given back."""
        return int(self.query("SELECT count(*) FROM holdfast_task WHERE owner IS NOT NULL"))

    def query(self, sql: str) -> Any:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return connection.execute(sql).fetchone()[0]


async def until(fact: Callable[[], Any], what: Callable[[], str] | str, seconds: float = 20) -> None:
    """Wait for a fact, with a bound."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, what if isinstance(what, str) else what()
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process that is not our child has ended; nobody may have asked for its exit code yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"
