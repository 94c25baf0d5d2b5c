"""Streams over HTTP across a killed server: a client that reconnects gets every item once and in order."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from streams.program import ITEMS
from streams.test_killed_workers import _OUTPUT, url

__all__ = ["url"]

_TESTS = Path(__file__).parents[1]
_INSTANCE = "/api/workflows/counting/instances/c-1"


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@asynccontextmanager
async def served(url: str, folder: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server with a worker; it is killed at the end."""
    (folder / "counting_app.py").write_text(
        f"import sys\nsys.path.insert(0, {str(_TESTS)!r})\n"
        f"from streams.program import make_app\napp = make_app({url!r}, killed_in=['b'])\n"
    )
    command = ["serve", "counting_app:app", "--worker", "--port", str(port), "--app-dir", str(folder)]
    with (folder / "server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast.cli", *command, stdout=log, stderr=log
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            while True:
                assert process.returncode is None, (folder / "server.log").read_text()
                try:
                    await http.get("/healthz")
                except httpx.TransportError:
                    await asyncio.sleep(0.02)
                else:
                    break
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_events(port: int, found: list[tuple[int, object]]) -> bool:
    """Read server-sent events after the last item as a browser does; True: the stream has ended."""
    headers = {"last-event-id": str(found[-1][0])} if found else {}
    fields: dict[str, str] = {}
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as http,
        http.stream("GET", f"{_INSTANCE}/streams/out", headers=headers) as response,
    ):
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif fields:
                if fields.get("event") == "end":
                    return True
                found.append((int(fields["id"]), json.loads(fields["data"])["value"]))
                fields = {}
    return False


async def follow(port: int, found: list[tuple[int, object]]) -> None:
    while True:
        try:
            if await read_events(port, found):
                return
        except httpx.TransportError:
            await asyncio.sleep(0.02)


async def test_a_browser_and_the_command_line_follow_a_stream_across_a_killed_server(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if url.startswith("postgresql") and not request.config.getoption("--long"):
        pytest.skip("with --long")
    port = free_port()
    found: list[tuple[int, object]] = []
    async with asyncio.timeout(90):
        async with served(url, tmp_path, port) as server, httpx.AsyncClient() as http:
            started = await http.post(
                f"http://127.0.0.1:{port}/api/workflows/counting/instances", json={"id": "c-1"}, timeout=30
            )
            assert started.status_code < 300, started.text
            following = asyncio.create_task(follow(port, found))
            command = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast.cli", "instances", "stream", "-w", "counting", "-i", "c-1", "out",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "HOLDFAST_BASE_URL": f"http://127.0.0.1:{port}/api/workflows"},
            )  # fmt: skip
            assert command.stdout is not None
            first = [await command.stdout.readline() for _ in range(1 + ITEMS // 2)]
            server.kill()
            await server.wait()
        async with served(url, tmp_path, port):
            await following
            rest, errors = await command.communicate()

    assert [value for _, value in found] == _OUTPUT
    offsets = [offset for offset, _ in found]
    assert offsets == sorted({*offsets})
    printed = b"".join(first).decode() + rest.decode()
    expected = [value if isinstance(value, str) else json.dumps(value) for value in _OUTPUT]
    assert printed.splitlines() == expected, errors.decode()
