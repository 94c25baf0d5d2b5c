"""``holdfast serve`` and ``holdfast dev`` as processes: what they say, whom they let in, how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from holdfast.cli.server import base_url, is_loopback

from .forking import Forked
from .live import wait_for
from .running import clean_environment, holdfast
from .shop import gone

APP = """
import asyncio
import time
from pathlib import Path

from holdfast import Context, Holdfast, WorkerConfig

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", worker=WorkerConfig(poll="100 ms"))


async def until_allowed():
    (HERE / "began").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.01)


async def block():
    (HERE / "began").touch()
    time.sleep(600)


@app.workflow
async def greet(ctx: Context) -> str:
    return "hello"


@app.workflow
async def holds(ctx: Context) -> None:
    await ctx.do("hold", until_allowed)


@app.workflow
async def blocks(ctx: Context) -> None:
    await ctx.do("block", block)
"""
FAST = """
async def loop():
    return type(asyncio.get_running_loop()).__module__


@app.workflow
async def fast(ctx: Context) -> str:
    return await ctx.do("loop", loop)
"""
TICKED = """
from holdfast import Retry


def once_more():
    tried = HERE / "tried"
    with tried.open("a") as file:
        file.write("x")
    if tried.read_text() == "x":
        raise ValueError("not yet")


@app.workflow
async def ticked(ctx: Context) -> str:
    await ctx.do("once more", once_more, retry=Retry(limit=1, delay="50 ms", backoff="constant"))
    await ctx.sleep("rest", "50 ms")
    await ctx.wait_for_event("go", type="go")
    return "went"
"""
GUARDED = """
from holdfast.http.auth import Authorize, Denied

async def nobody(request):
    raise Denied(401, "nobody may")

app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", authorize=Authorize(request=nobody))
"""


class Served:
    """A command that goes on until it is told to stop."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        for file in (self._out, self._err):
            file.write_text("")
        self.process = Forked(arguments, folder, clean_environment(), self._out, self._err)

    @property
    def said(self) -> str:
        return self._out.read_text() + self._err.read_text()

    @property
    def base(self) -> str:
        """Where the API is, once it answers."""
        said = wait_for(lambda: self.said, lambda said: "API  " in said or self.process.poll() is not None)
        return re.findall(r"^API +(\S+)$", said, re.MULTILINE)[0]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, "-b", self.base)

    def says(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.said, lambda said: said.count(text) >= times)

    def ends(self, number: int | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[list[Served]]:
    started: list[Served] = []
    yield started
    for served in started:
        served.close()


def serve(started: list[Served], folder: Path, *arguments: str, command: str = "serve") -> Served:
    started.append(Served(folder, command, "shop:app", "--port", "0", *arguments))
    return started[-1]


# --- serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_works_until_a_signal(folder: Path, started: list[Served], number: signal.Signals) -> None:
    served = serve(started, folder, "--worker")

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/api/workflows", served.base)
    assert served.run("instances", "create", "-w", "greet", "-i", "one").returncode == 0
    wait_for(lambda: served.run("instances", "get", "-w", "greet", "-i", "one").stdout, lambda out: "complete" in out)

    assert served.ends(number) == 0
    assert "Worker  runs greet, holds, blocks\n" in served.said
    assert served.said.endswith("INFO stopped\n")
    assert "Traceback" not in served.said


def test_it_runs_on_the_fast_loop_and_parser(folder: Path, started: list[Served]) -> None:
    (folder / "shop.py").write_text(APP + FAST)
    server = serve(started, folder, "--worker")
    address = urlsplit(server.base)

    server.run("instances", "create", "-w", "fast", "-i", "f")
    get = "instances", "get", "-w", "fast", "-i", "f", "--full"
    done = wait_for(lambda: server.run(*get).stdout, lambda out: "complete" in out)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        answer = connection.recv(10_000)

    assert "uvloop" in done
    assert b'"code": "INVALID_REQUEST"' in answer  # which only this package's protocol says


def test_it_listens_on_this_machine_only(folder: Path, started: list[Served]) -> None:
    port = urlsplit(serve(started, folder).base).port

    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


def test_with_tick_and_no_worker_runs_move_when_a_tick_comes(folder: Path, started: list[Served]) -> None:
    (folder / "shop.py").write_text(APP + TICKED)
    servers = [serve(started, folder, "--tick") for _ in range(2)]
    get = "instances", "get", "-w", "ticked", "-i", "t", "--full"

    def tick(server: Served) -> int:
        with urlopen(Request(f"{server.base}/_runner/tick", method="POST"), timeout=30) as answer:
            return int(json.load(answer)["processed"])

    servers[0].run("instances", "create", "-w", "ticked", "-i", "t")
    assert not (folder / "tried").exists()
    wait_for(lambda: sum(map(tick, servers)), lambda _: (folder / "tried").read_text() == "xx")
    servers[1].run("instances", "send-event", "-w", "ticked", "-i", "t", "-t", "go")
    done = wait_for(lambda: (sum(map(tick, servers)), servers[0].run(*get).stdout)[1], lambda out: "complete" in out)

    assert "went" in done
    assert (folder / "tried").read_text() == "xx"
    assert f"Ticks   POST {servers[0].base}/_runner/tick\n" in servers[0].said
    assert [server.ends(signal.SIGTERM) for server in servers] == [0, 0]


def test_without_tick_a_tick_is_refused(folder: Path, started: list[Served]) -> None:
    server = serve(started, folder)

    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{server.base}/_runner/tick", method="POST"), timeout=30)

    assert caught.value.code == 403
    assert json.load(caught.value)["code"] == "RUNNER_TICK_DISABLED"
    assert "Ticks" not in server.said


def test_without_a_worker_runs_are_left_to_others(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder)

    assert served.run("instances", "create", "-w", "greet", "-i", "one").returncode == 0
    shown = served.run("instances", "get", "-w", "greet", "-i", "one").stdout

    assert "waiting for a worker of queue 'default'" in shown
    assert served.ends(signal.SIGTERM) == 0
    assert "Worker" not in served.said


def test_a_signal_lets_steps_in_flight_end(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder, "--worker")
    served.run("instances", "create", "-w", "holds", "-i", "one")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    served.process.send_signal(signal.SIGTERM)
    served.says("stopping; steps in flight may end")
    assert served.process.poll() is None
    (folder / "go").touch()

    assert served.ends() == 0


def test_a_second_signal_ends_it_at_once(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder, "--worker", "--drain", "10 min")
    served.run("instances", "create", "-w", "holds", "-i", "one")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    served.process.send_signal(signal.SIGTERM)
    served.says("stopping; steps in flight may end")

    assert served.ends(signal.SIGTERM) == -signal.SIGTERM


def test_code_that_blocks_everything_cannot_hold_up_the_second_signal(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder, "--worker")
    served.run("instances", "create", "-w", "blocks", "-i", "one", "--timeout", "1", "--retries", "0")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    served.process.send_signal(signal.SIGTERM)
    wait_for(lambda: str(catches(served.process.pid, signal.SIGTERM)), lambda caught: caught == "False")

    assert served.ends(signal.SIGTERM) == -signal.SIGTERM


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    [mask] = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_an_app_without_hooks_is_not_shown_to_the_world(folder: Path, command: str) -> None:
    done = holdfast(command, "shop:app", "--host", "0.0.0.0", "--port", "0", cwd=folder)

    assert done.returncode == 2
    assert "--host 0.0.0.0: the app has no authorize hooks" in done.stderr
    assert "API" not in done.stdout


def test_unless_someone_insists(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder, "--host", "0.0.0.0", "--insecure")

    assert served.run("workflows", "list").returncode == 0
    assert served.ends(signal.SIGTERM) == 0


def test_an_app_with_hooks_is_served_anywhere(folder: Path, started: list[Served]) -> None:
    with (folder / "shop.py").open("a") as file:
        file.write(GUARDED)
    served = serve(started, folder, "--host", "0.0.0.0")

    assert served.run("workflows", "list").stderr == "Request failed: 401 nobody may (UNAUTHORIZED)\n"
    assert served.ends(signal.SIGTERM) == 0


def test_its_own_address_is_one_it_answers_to(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder, "--host", "127.0.0.2")

    assert served.run("workflows", "list").returncode == 0
    assert served.ends(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("host", "yes"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_which_addresses_only_this_machine_has(host: str, yes: bool) -> None:
    assert is_loopback(host) is yes


def test_the_base_url_is_one_that_can_be_used() -> None:
    assert base_url("::1", 80) == "http://[::1]:80/api/workflows"
    assert base_url("0.0.0.0", 80) == "http://127.0.0.1:80/api/workflows"


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_port_that_is_taken(folder: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = holdfast(command, "shop:app", "--port", str(port), cwd=folder)

    assert done.returncode == 1
    assert done.stderr.endswith(
        f"holdfast: cannot listen on 127.0.0.1 port {port}: Address already in use; see --host and --port\n"
    )


@pytest.mark.parametrize("command", ["serve", "dev"])
@pytest.mark.parametrize("target", ["nope:app", "shop:nope", "shop", "shop:APP"])
def test_no_such_app(folder: Path, command: str, target: str) -> None:
    done = holdfast(command, target, "--port", "0", cwd=folder)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- dev


def test_it_restarts_when_a_file_changes(folder: Path, started: list[Served]) -> None:
    served = serve(started, folder, command="dev")
    assert f"export HOLDFAST_BASE_URL={served.base}\n" in served.said
    served.says("holdfast instances create -w greet")
    served.run("instances", "create", "-w", "holds", "-i", "one")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    (folder / "shop.py").write_text(APP.replace("greet", "welcome"))
    served.says("shop.py changed; restarting")
    served.says("Worker  runs welcome, holds, blocks")
    assert served.run("workflows", "list").stdout.split()[1:] == ["welcome", "holds", "blocks"]
    (folder / "go").touch()
    wait_for(lambda: served.run("instances", "get", "-w", "holds", "-i", "one").stdout, lambda out: "complete" in out)

    (folder / "shop.py").write_text("this is no Python")
    served.says("waiting for a change")
    assert "SyntaxError" in served.said
    (folder / "shop.py").write_text(APP.replace("greet", "salute"))
    served.says("Worker  runs salute, holds, blocks")
    assert served.run("workflows", "list").stdout.split()[1:] == ["salute", "holds", "blocks"]

    assert served.ends(signal.SIGINT) == 0
    assert served.said.count("Try, in another terminal") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_dev_ends_nothing_is_left_behind(folder: Path, started: list[Served], number: signal.Signals) -> None:
    served = serve(started, folder, command="dev")
    assert served.base
    [child] = children(served.process.pid)

    code = served.ends(number)

    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: str(gone(child)), lambda is_gone: is_gone == "True")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_is_not_source_changes_nothing(tmp_path: Path) -> None:
    from holdfast.cli.dev import snapshot

    for path in ("a.py", "deep/er/b.py", ".hidden/c.py", "env/pyvenv.cfg", "env/lib/d.py", "__pycache__/e.py", "f.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    found = {os.path.relpath(path, tmp_path) for path in snapshot(tmp_path)}

    assert found == {"a.py", "deep/er/b.py"}
