"""``holdfast worker --metrics-port``: a listener that answers ``GET /metrics`` and probes, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from holdfast.app import Holdfast
from holdfast.cli.health import PATHS, health
from holdfast.errors import HoldfastError

_log = logging.getLogger("holdfast")

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_HEAD = 8_192
_SECONDS = 10.0
"""Time for a request and its response."""


class CannotServeMetricsError(HoldfastError):
    """The port for metrics cannot be opened."""


@asynccontextmanager
async def metrics_server(app: Holdfast, host: str, port: int, ports: int) -> AsyncIterator[int]:
    """Serve metrics and probes on the first free port of ``ports`` ports from ``port`` on; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _response(head, app))
                await writer.drain()
        writer.close()

    server = await _listen(answer, host, port, ports)
    async with server:
        found: int = server.sockets[0].getsockname()[1]
        _log.info("metrics on http://%s:%d/metrics", host, found)
        yield found


async def _listen(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], host: str, port: int, ports: int
) -> asyncio.Server:
    for candidate in range(port, port + ports):
        try:
            return await asyncio.start_server(answer, host, candidate, limit=_MAX_HEAD, reuse_address=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or candidate == port + ports - 1:
                reason = error.strerror or error
                raise CannotServeMetricsError(
                    f"cannot listen on {host} port {candidate} for metrics: {reason}; see --metrics-port"
                ) from None
    raise AssertionError("there is at least one port")


async def _response(head: bytes, app: Holdfast) -> bytes:
    method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    if path not in ("/metrics", *PATHS):
        return _message("404 Not Found", b"the metrics are at /metrics, the probes at /healthz and /readyz\n")
    if method not in (b"GET", b"HEAD"):
        return _message("405 Method Not Allowed", b"")
    if path in PATHS:
        status, body = await health(app, path)
        return _message("200 OK" if status == 200 else "503 Service Unavailable", body)
    try:
        body = (await app.metrics_text()).encode()
    except Exception:
        _log.exception("the metrics could not be read")
        return _message("500 Internal Server Error", b"")
    return _message("200 OK", body)


def _message(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
