"""``holdfast serve`` and ``holdfast dev`` as processes: their output, their exposure and their end."""

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

from .forking import ForkedCommand
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
    await ctx.sleep("pause", "50 ms")
    await ctx.wait_for_event("go", type="go")
    return "went"
"""
GUARDED = """
from holdfast.http.auth import Authorize, Denied

async def deny(request):
    raise Denied(401, "always denied")

app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", authorize=Authorize(request=deny))
"""


class ServeProcess:
    """A command that runs until a signal stops it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        for file in (self._out, self._err):
            file.write_text("")
        self.process = ForkedCommand(arguments, folder, clean_environment(), self._out, self._err)

    @property
    def output(self) -> str:
        return self._out.read_text() + self._err.read_text()

    @property
    def base(self) -> str:
        """The base URL of the API, once the server accepts requests."""
        output = wait_for(lambda: self.output, lambda output: "API  " in output or self.process.poll() is not None)
        return re.findall(r"^API +(\S+)$", output, re.MULTILINE)[0]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, "-b", self.base)

    def wait_for_output(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.output, lambda output: output.count(text) >= times)

    def wait_for_end(self, number: int | None = None) -> int:
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
def started(folder: Path) -> Iterator[list[ServeProcess]]:
    started: list[ServeProcess] = []
    yield started
    for served in started:
        served.close()


def serve(started: list[ServeProcess], folder: Path, *arguments: str, command: str = "serve") -> ServeProcess:
    started.append(ServeProcess(folder, command, "shop:app", "--port", "0", *arguments))
    return started[-1]


# --- serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_with_a_worker_runs_until_a_signal(
    folder: Path, started: list[ServeProcess], number: signal.Signals
) -> None:
    served = serve(started, folder, "--worker")

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/api/workflows", served.base)
    assert served.run("instances", "create", "-w", "greet", "-i", "one").returncode == 0
    wait_for(lambda: served.run("instances", "get", "-w", "greet", "-i", "one").stdout, lambda out: "complete" in out)

    assert served.wait_for_end(number) == 0
    assert "Worker  runs greet, holds, blocks\n" in served.output
    assert served.output.endswith("INFO stopped\n")
    assert "Traceback" not in served.output


def test_serve_uses_uvloop_and_httptools(folder: Path, started: list[ServeProcess]) -> None:
    (folder / "shop.py").write_text(APP + FAST)
    server = serve(started, folder, "--worker")
    address = urlsplit(server.base)

    server.run("instances", "create", "-w", "fast", "-i", "f")
    get = "instances", "get", "-w", "fast", "-i", "f", "--full"
    done = wait_for(lambda: server.run(*get).stdout, lambda out: "complete" in out)
    with socket.create_connection((address.hostname, address.port), timeout=300) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        response = connection.recv(10_000)

    assert "uvloop" in done
    assert b'"code": "INVALID_REQUEST"' in response  # only this package's protocol responds so


def test_serve_listens_on_loopback_by_default(folder: Path, started: list[ServeProcess]) -> None:
    port = urlsplit(serve(started, folder).base).port

    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


def test_with_tick_and_no_worker_runs_advance_only_at_a_tick(folder: Path, started: list[ServeProcess]) -> None:
    (folder / "shop.py").write_text(APP + TICKED)
    servers = [serve(started, folder, "--tick") for _ in range(2)]
    get = "instances", "get", "-w", "ticked", "-i", "t", "--full"

    def tick(server: ServeProcess) -> int:
        with urlopen(Request(f"{server.base}/_runner/tick", method="POST"), timeout=300) as response:
            return int(json.load(response)["processed"])

    servers[0].run("instances", "create", "-w", "ticked", "-i", "t")
    assert not (folder / "tried").exists()
    wait_for(lambda: sum(map(tick, servers)), lambda _: (folder / "tried").read_text() == "xx")
    servers[1].run("instances", "send-event", "-w", "ticked", "-i", "t", "-t", "go")
    done = wait_for(lambda: (sum(map(tick, servers)), servers[0].run(*get).stdout)[1], lambda out: "complete" in out)

    assert "went" in done
    assert (folder / "tried").read_text() == "xx"
    assert f"Ticks   POST {servers[0].base}/_runner/tick\n" in servers[0].output
    assert [server.wait_for_end(signal.SIGTERM) for server in servers] == [0, 0]


def test_without_tick_a_tick_is_refused(folder: Path, started: list[ServeProcess]) -> None:
    server = serve(started, folder)

    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{server.base}/_runner/tick", method="POST"), timeout=300)

    assert caught.value.code == 403
    assert json.load(caught.value)["code"] == "RUNNER_TICK_DISABLED"
    assert "Ticks" not in server.output


def test_without_a_worker_runs_wait_for_other_workers(folder: Path, started: list[ServeProcess]) -> None:
    served = serve(started, folder)

    assert served.run("instances", "create", "-w", "greet", "-i", "one").returncode == 0
    shown = served.run("instances", "get", "-w", "greet", "-i", "one").stdout

    assert "waiting for a worker of queue 'default'" in shown
    assert served.wait_for_end(signal.SIGTERM) == 0
    assert "Worker" not in served.output


def test_a_signal_lets_steps_in_flight_end(folder: Path, started: list[ServeProcess]) -> None:
    served = serve(started, folder, "--worker")
    served.run("instances", "create", "-w", "holds", "-i", "one")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    served.process.send_signal(signal.SIGTERM)
    served.wait_for_output("stopping; waiting for steps in flight")
    assert served.process.poll() is None
    (folder / "go").touch()

    assert served.wait_for_end() == 0


def test_a_second_signal_ends_the_server_at_once(folder: Path, started: list[ServeProcess]) -> None:
    served = serve(started, folder, "--worker", "--drain", "10 min")
    served.run("instances", "create", "-w", "holds", "-i", "one")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    served.process.send_signal(signal.SIGTERM)
    served.wait_for_output("stopping; waiting for steps in flight")

    assert served.wait_for_end(signal.SIGTERM) == -signal.SIGTERM


def test_code_that_blocks_the_event_loop_does_not_delay_the_second_signal(
    folder: Path, started: list[ServeProcess]
) -> None:
    served = serve(started, folder, "--worker")
    served.run("instances", "create", "-w", "blocks", "-i", "one", "--timeout", "1", "--retries", "0")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    served.process.send_signal(signal.SIGTERM)
    wait_for(lambda: str(catches(served.process.pid, signal.SIGTERM)), lambda caught: caught == "False")

    assert served.wait_for_end(signal.SIGTERM) == -signal.SIGTERM


def catches(pid: int, number: int) -> bool:
    """True if a process has its own handler for a signal."""
    [mask] = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_an_app_without_hooks_is_not_served_to_other_machines(folder: Path, command: str) -> None:
    done = holdfast(command, "shop:app", "--host", "0.0.0.0", "--port", "0", cwd=folder)

    assert done.returncode == 2
    assert "--host 0.0.0.0: the app has no authorize hooks" in done.stderr
    assert "API" not in done.stdout


def test_insecure_serves_an_app_without_hooks_to_other_machines(folder: Path, started: list[ServeProcess]) -> None:
    served = serve(started, folder, "--host", "0.0.0.0", "--insecure")

    assert served.run("workflows", "list").returncode == 0
    assert served.wait_for_end(signal.SIGTERM) == 0


def test_an_app_with_hooks_is_served_on_any_address(folder: Path, started: list[ServeProcess]) -> None:
    with (folder / "shop.py").open("a") as file:
        file.write(GUARDED)
    served = serve(started, folder, "--host", "0.0.0.0")

    assert served.run("workflows", "list").stderr == "Request failed: 401 always denied (UNAUTHORIZED)\n"
    assert served.wait_for_end(signal.SIGTERM) == 0


def test_the_server_accepts_its_own_address_as_host(folder: Path, started: list[ServeProcess]) -> None:
    served = serve(started, folder, "--host", "127.0.0.2")

    assert served.run("workflows", "list").returncode == 0
    assert served.wait_for_end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("host", "expected"),
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
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_base_url_can_be_used_on_this_machine() -> None:
    assert base_url("::1", 80) == "http://[::1]:80/api/workflows"
    assert base_url("0.0.0.0", 80) == "http://127.0.0.1:80/api/workflows"


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_port_in_use_is_reported_in_one_line(folder: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = holdfast(command, "shop:app", "--port", str(port), cwd=folder)

    assert done.returncode == 1
    assert done.stderr.endswith(
        f"holdfast: cannot listen on 127.0.0.1 port {port}: Address already in use; see --host and --port\n"
    )


@pytest.mark.parametrize("command", ["serve", "dev"])
@pytest.mark.parametrize("target", ["nope:app", "shop:nope", "shop", "shop:APP"])
def test_a_missing_app_exits_with_2(folder: Path, command: str, target: str) -> None:
    done = holdfast(command, target, "--port", "0", cwd=folder)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- dev


def test_dev_restarts_when_a_file_changes(folder: Path, started: list[ServeProcess]) -> None:
    served = serve(started, folder, command="dev")
    assert f"export HOLDFAST_BASE_URL={served.base}\n" in served.output
    served.wait_for_output("holdfast instances create -w greet")
    served.run("instances", "create", "-w", "holds", "-i", "one")
    wait_for(lambda: str((folder / "began").exists()), lambda began: began == "True")

    (folder / "shop.py").write_text(APP.replace("greet", "welcome"))
    served.wait_for_output("shop.py changed; restarting")
    served.wait_for_output("Worker  runs welcome, holds, blocks")
    assert served.run("workflows", "list").stdout.split()[1:] == ["welcome", "holds", "blocks"]
    (folder / "go").touch()
    wait_for(lambda: served.run("instances", "get", "-w", "holds", "-i", "one").stdout, lambda out: "complete" in out)

    (folder / "shop.py").write_text("this is no Python")
    served.wait_for_output("waiting for a change")
    assert "SyntaxError" in served.output
    (folder / "shop.py").write_text(APP.replace("greet", "salute"))
    served.wait_for_output("Worker  runs salute, holds, blocks")
    assert served.run("workflows", "list").stdout.split()[1:] == ["salute", "holds", "blocks"]

    assert served.wait_for_end(signal.SIGINT) == 0
    assert served.output.count("Try, in another terminal") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_dev_ends(folder: Path, started: list[ServeProcess], number: signal.Signals) -> None:
    served = serve(started, folder, command="dev")
    assert served.base
    [child] = children(served.process.pid)

    code = served.wait_for_end(number)

    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: str(gone(child)), lambda is_gone: is_gone == "True")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_snapshot_has_source_files_only(tmp_path: Path) -> None:
    from holdfast.cli.dev import snapshot

    for path in ("a.py", "deep/er/b.py", ".hidden/c.py", "env/pyvenv.cfg", "env/lib/d.py", "__pycache__/e.py", "f.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    paths = {os.path.relpath(path, tmp_path) for path in snapshot(tmp_path)}

    assert paths == {"a.py", "deep/er/b.py"}
