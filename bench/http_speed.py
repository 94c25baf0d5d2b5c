"""Speed of the HTTP API: ``python -m bench.http_speed [creates] [reads] [pages] [--postgres]``.

A server process runs uvicorn as ``holdfast serve`` does, a worker, and a SQLite file on disk or, with ``--postgres``, a
database of a temporary server. This process has the clients, on raw keep-alive connections: the cost of an HTTP library
would be measured too.

creates   POST of new instances of a one-step workflow, which the server's worker runs at the same time; and the same
          with a server that has no worker
reads     GET of one instance, one at a time, while the server is busy with runs of five steps
pages     page 1 and page 1,000 of a list of 200,000 instances
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.machine import scratch_parent
from holdfast import Context, Holdfast, Start, tune_collector
from holdfast.cli.server import http_protocol, new_loop

Url = Callable[[str], str]
"""The URL of a new database with this name."""
BASE = "/api/workflows"
CONNECTIONS = 32
CREATES = 5_000
CREATE_ROUNDS = 3
READS = 1_000
LOADS = {"idle": 0, "100 runs/s": -100, "400 runs/s": -400, "1,000 runs in flight": 1_000}
INSTANCES = 200_000
PAGES = 1_000
ROUNDS = 30


def build(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.step
    async def add_one(value: int) -> int:
        return value + 1

    @app.workflow
    async def one_step(_ctx: Context, value: int) -> int:
        return await add_one(value)

    @app.workflow
    async def five_steps(_ctx: Context, value: int) -> int:
        for _ in range(5):
            value = await add_one(value)
        return value

    return app


# --- the server process


async def serve(url: str, load: int, with_worker: bool) -> None:
    import uvicorn

    app = build(url)
    tune_collector()  # as `holdfast serve` does
    options: dict[str, Any] = {"http": http_protocol(), "log_level": "warning", "access_log": False}
    config = uvicorn.Config(app.asgi(), host="127.0.0.1", port=0, **options)
    server = uvicorn.Server(config)
    async with app if with_worker else app.connect():
        busy = asyncio.create_task(keep_busy(app, load)) if load else None
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await serving
        if busy is not None:
            busy.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await busy


async def keep_busy(app: Holdfast, load: int) -> None:
    """Keep runs of five steps going: ``load`` of them in flight, or, if negative, ``-load`` started per second."""

    async def run_repeatedly() -> None:
        while True:
            run = await app.start("five_steps", 0)
            await run.result()

    if load > 0:
        await asyncio.gather(*(run_repeatedly() for _ in range(load)))
    begin, count = time.perf_counter(), 0
    while True:
        while count < (time.perf_counter() - begin) * -load:
            await app.start("five_steps", 0)
            count += 1
        await asyncio.sleep(0.01)


class Server(NamedTuple):
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(url: str, load: int = 0, *, with_worker: bool = True) -> Iterator[Server]:
    command = [sys.executable, "-m", "bench.http_speed", "--serve", url, str(load), str(int(with_worker))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


# --- clients


class Connection:
    """One keep-alive connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {BASE}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        assert headers.startswith(b"HTTP/1.1 200"), (headers, content)
        return json.loads(content)


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def creates(url: Url) -> None:
    for name, with_worker in (("", True), (", without a worker", False)):
        with server(url(f"creates{int(with_worker)}"), with_worker=with_worker) as running:
            await _measure_creates(name, running)


async def _measure_creates(name: str, running: Server) -> None:
    async def create(count: int) -> None:
        async with connection(running.port) as client:
            for _ in range(count):
                await client.request("POST", "/one_step/instances", {"params": 1})

    await create(100)
    rates, costs = list[float](), list[float]()
    created = CREATES // CONNECTIONS * CONNECTIONS
    for _ in range(CREATE_ROUNDS):
        started, cpu = time.perf_counter(), running.cpu_seconds()
        await asyncio.gather(*(create(CREATES // CONNECTIONS) for _ in range(CONNECTIONS)))
        rates.append(created / (time.perf_counter() - started))
        costs.append((running.cpu_seconds() - cpu) / created * 1_000_000)
    print(
        f"creates{name}: {statistics.median(rates):,.0f}/s over {CONNECTIONS} connections, "
        f"{statistics.median(costs):.0f} us of the server's processor time each (medians of {CREATE_ROUNDS})"
    )


async def reads(url: Url) -> None:
    for n, (name, load) in enumerate(LOADS.items()):
        with server(url(f"reads{n}"), load) as running:
            async with connection(running.port) as client:
                created = await client.request("POST", "/five_steps/instances", {"params": 1})
                await asyncio.sleep(2)
                samples = []
                for _ in range(READS):
                    started = time.perf_counter()
                    await client.request("GET", f"/five_steps/instances/{created['id']}")
                    samples.append((time.perf_counter() - started) * 1000)
                    await asyncio.sleep(0.001)
        cuts = statistics.quantiles(samples, n=100)
        print(f"reads, {name}: median {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, maximum {max(samples):.2f} ms")


async def pages(database: Url) -> None:
    url = database("pages")
    app = build(url)
    async with app.connect():
        for first in range(0, INSTANCES, 1000):
            await app.start_many("one_step", [Start(f"i{n}", 1) for n in range(first, first + 1000)])
    with server(url, with_worker=False) as running:
        async with connection(running.port) as client:
            path, cursors = "/one_step/instances?pageSize=100", [""]
            for _ in range(PAGES - 1):
                page = await client.request("GET", path + cursors[-1])
                cursors.append(f"&cursor={page['nextCursor']}")
            times = {}
            for name, cursor in (("1", cursors[0]), ("1,000", cursors[-1])):
                samples = []
                for _ in range(ROUNDS):
                    started = time.perf_counter()
                    page = await client.request("GET", path + cursor)
                    samples.append((time.perf_counter() - started) * 1000)
                    assert len(page["instances"]) == 100
                times[name] = statistics.median(samples)
    print(f"pages of 100 in {INSTANCES:,}: " + ", ".join(f"page {name} {ms:.2f} ms" for name, ms in times.items()))


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch_parent()) as directory:
        where = Path(directory).resolve()
        if "--postgres" not in chosen:
            asyncio.run(measure(chosen, lambda name: f"sqlite:///{where}/{name}.db"))
            return
        from bench import postgres

        with postgres.serving(where) as database_server:
            asyncio.run(measure(chosen, database_server.database))


async def measure(chosen: list[str], url: Url) -> None:
    names = [name for name in chosen if not name.startswith("--")]
    for measured in (creates, reads, pages):
        if not names or measured.__name__ in names:
            await measured(url)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"))
    else:
        main(sys.argv[1:])
