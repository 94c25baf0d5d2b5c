"""Hostile connections to a real server: slow, incomplete, endless, malformed. The server keeps serving others."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from http_fuzz import served
from http_shop import make_shop

from holdfast.cli import protocol
from holdfast.http import bodies

CREATE = "POST /api/workflows/echo/instances HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(bodies, "TIMEOUT_S", 1.0)
    app, _ = make_shop(f"sqlite:///{tmp_path / 'shop.db'}")
    with served(app.asgi()) as address:
        yield address


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=300)


def exchange(address: str, data: bytes) -> bytes:
    """Send data and read until the server closes the connection."""
    with closing(connect(address)) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        return read(connection)


def read(connection: socket.socket) -> bytes:
    response = b""
    with suppress(ConnectionError):
        while chunk := connection.recv(65536):
            response += chunk
    return response


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def assert_unharmed(address: str, instances: int = 0) -> None:
    """The server responds quickly, and has only the instances whose creation it acknowledged."""
    base = f"{address}/api/workflows"
    began = time.monotonic()
    assert httpx.get(f"{base}/_health", timeout=300).json() == {"status": "ok"}
    assert len(httpx.get(f"{base}/echo/instances").json()["instances"]) == instances
    assert time.monotonic() - began < 60


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


HEAD = b"GET /api/workflows HTTP/1.1\r\nHost: 127.0.0.1\r\n"
ENDLESS = {
    "many headers": (HEAD, b"X-A: b\r\n" * 8192),
    "one header": (HEAD + b"X: ", b"x" * 65536),
    "name of a header": (HEAD, b"x" * 65536),
    "path": (b"GET /", b"x" * 65536),
    "trailers": (f"{CREATE}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n".encode(), b"X-A: b\r\n" * 8192),
    "extension of a chunk": (f"{CREATE}Transfer-Encoding: chunked\r\n\r\n2;".encode(), b"x" * 65536),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_head_is_refused(address: str, name: str) -> None:
    start, more = ENDLESS[name]
    before, sent = resident(), 0
    with closing(connect(address)) as connection, suppress(ConnectionError):
        connection.sendall(start)
        for _ in range(500):
            connection.sendall(more)
            sent += len(more)
    assert sent < 500 * len(more)
    assert resident() - before < 50_000_000
    assert httpx.get(f"{address}/api/workflows/_health", timeout=300).status_code == 200


def test_a_large_head_is_refused_with_json_and_an_ordinary_one_is_accepted(address: str) -> None:
    def request(size: int) -> bytes:
        return exchange(address, HEAD + b"Connection: close\r\nX: " + b"x" * size + b"\r\n\r\n")

    assert status(request(30_000)) == 200
    with closing(connect(address)) as connection:  # not more than the server reads before it refuses the head
        connection.sendall(HEAD + b"X: " + b"x" * 66_000)
        response = read(connection)
    assert status(response) == 431
    assert json.loads(response.split(b"\r\n\r\n", 1)[1])["code"] == "HEADERS_TOO_LARGE"


@pytest.mark.parametrize("start", [b"", b"GET /", HEAD, HEAD + b"X: "])
def test_an_incomplete_head_is_refused_after_a_timeout(
    address: str, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
    with closing(connect(address)) as connection:
        connection.settimeout(0.05)
        connection.sendall(start)
        response, began = b"", time.monotonic()
        while not response and time.monotonic() - began < 120:
            with suppress(TimeoutError):
                response = connection.recv(65536)
            if start and not response:
                with suppress(ConnectionError):
                    connection.sendall(b"x")  # slowly, byte by byte

    assert status(response) == 408
    assert json.loads(response.split(b"\r\n\r\n", 1)[1])["code"] == "REQUEST_TIMEOUT"
    monkeypatch.undo()
    assert_unharmed(address)


def test_the_timeout_of_the_head_does_not_apply_to_the_body(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 2.0)
    monkeypatch.setattr(bodies, "TIMEOUT_S", 60.0)
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Content-Length: 2\r\nConnection: close\r\n\r\n".encode())
        time.sleep(2.5)
        connection.sendall(b"{}")
        assert status(read(connection)) == 200


def test_an_incomplete_body_is_refused_after_a_timeout(address: str) -> None:
    began = time.monotonic()
    response = exchange(address, f'{CREATE}Content-Length: 100\r\n\r\n{{"params": '.encode())

    assert time.monotonic() - began < 60
    assert status(response) == 408
    assert b"connection: close" in response.lower()
    assert json.loads(response.split(b"\r\n\r\n", 1)[1])["code"] == "REQUEST_TIMEOUT"
    assert_unharmed(address)


def test_a_body_that_arrives_slowly_is_refused_after_a_timeout(address: str) -> None:
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Content-Length: 1000\r\n\r\n".encode())
        connection.settimeout(0.05)
        response = b""
        began = time.monotonic()
        while not response and time.monotonic() - began < 120:
            connection.sendall(b" ")
            with suppress(TimeoutError):
                response = connection.recv(65536)

    assert status(response) == 408
    assert_unharmed(address)


def test_a_body_cut_off_by_the_end_of_the_connection_starts_nothing(address: str) -> None:
    for _ in range(20):
        with closing(connect(address)) as connection:
            connection.sendall(f'{CREATE}Content-Length: 100\r\n\r\n{{"params": 1'.encode())
    assert_unharmed(address)


def test_an_endless_chunked_body_is_refused(address: str) -> None:
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        with suppress(ConnectionError, TimeoutError):
            while sent < 64 * 1024 * 1024:
                connection.sendall(chunk)
                sent += len(chunk)
        response = read(connection)

    assert not response or status(response) == 413
    assert sent < 64 * 1024 * 1024
    assert_unharmed(address)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_is_still_sending_a_large_body_receives_the_refusal(address: str, chunked: bool) -> None:
    size = 8 * 1024 * 1024
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    piece = b" " * 0x10000
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}{framing}\r\n\r\n".encode())
        for _ in range(size // len(piece)):
            connection.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
        connection.sendall(b"0\r\n\r\n" if chunked else b"")
        connection.sendall(HEAD + b"Connection: close\r\n\r\n")
        response = read(connection)

    assert status(response) == 413
    assert response.count(b"HTTP/1.1 200 OK") == 1  # the connection is in order after the body
    assert_unharmed(address)


def test_a_body_that_is_announced_as_huge_closes_the_connection(address: str) -> None:
    response = exchange(address, f"{CREATE}Content-Length: {1 << 30}\r\n\r\n".encode())

    assert status(response) == 413
    assert b"connection: close" in response.lower()


def test_a_huge_announced_chunk_allocates_no_memory(address: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Transfer-Encoding: chunked\r\n\r\n7fffffff\r\nx".encode())
        time.sleep(0.2)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert_unharmed(address)


def test_a_body_may_arrive_in_many_tiny_chunks(address: str) -> None:
    body = json.dumps({"id": "tiny", "params": "x" * 5000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    response = exchange(address, f"{CREATE}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode() + chunks)

    assert status(response) == 200
    assert_unharmed(address, instances=1)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /api/workflows HTTP/9.9\r\n\r\n",
        b"GET /api/workflows HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\nConnection: close\r\n\r\n",
        b"GET /api/workflows HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /api/workflows HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        CREATE.encode() + b"Content-Length: 2\r\nContent-Length: 200\r\nConnection: close\r\n\r\n{}",
        CREATE.encode() + b"Content-Length: -1\r\nConnection: close\r\n\r\n{}",
        CREATE.encode() + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\nConnection: close\r\n\r\nzz\r\n",
        CREATE.encode() + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"GET /api/workflows/" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /api/workflows/echo/../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /api/workflows/echo/instances/.. HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /api/workflows/echo/instances/%zz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET http://evil.example/api/workflows/x HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"BREW /api/workflows HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ],
    ids=lambda request: repr(request[:60]),
)  # fmt: skip
def test_a_malformed_request_is_refused(address: str, request_: bytes) -> None:
    response = exchange(address, request_)

    assert not response or 400 <= status(response) < 500
    assert_unharmed(address)


def test_requests_on_one_connection_are_answered_in_order(address: str) -> None:
    def create(n: int) -> bytes:
        body = b'{"id": "p%d", "params": %d}' % (n, n)
        return f"{CREATE}Content-Length: {len(body)}\r\n\r\n".encode() + body

    last = b"GET /api/workflows/none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    response = exchange(address, b"".join(create(n) for n in range(10)) + last)

    assert [part.split(b'"id":"')[1][:2] for part in response.split(b"HTTP/1.1 200")[1:]] == [
        b"p%d" % n for n in range(10)
    ]
    assert response.count(b"HTTP/1.1 404") == 1
    assert_unharmed(address, instances=10)


def test_many_slow_connections_do_not_block_other_requests(address: str) -> None:
    slow = [connect(address) for _ in range(200)]
    try:
        for n, connection in enumerate(slow):
            half = CREATE if n % 2 else f"{CREATE}Content-Length: 100\r\n\r\n{{"
            connection.sendall(half.encode())
        assert_unharmed(address)
    finally:
        for connection in slow:
            connection.close()
    assert_unharmed(address)
