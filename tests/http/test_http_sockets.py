"""Hostile connections to a real server: slow, half, endless, malformed. It goes on serving the others."""

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
    monkeypatch.setattr(bodies, "SECONDS", 1.0)
    app, _ = make_shop(f"sqlite:///{tmp_path / 'shop.db'}")
    with served(app.asgi()) as address:
        yield address


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def talk(address: str, data: bytes) -> bytes:
    """Send, and read until the server closes the connection."""
    with closing(connect(address)) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        return read(connection)


def read(connection: socket.socket) -> bytes:
    answer = b""
    with suppress(ConnectionError):
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def unharmed(address: str, instances: int = 0) -> None:
    """The server answers at once, and only what was acknowledged is there."""
    base = f"{address}/api/workflows"
    began = time.monotonic()
    assert httpx.get(f"{base}/_health", timeout=10).json() == {"status": "ok"}
    assert len(httpx.get(f"{base}/echo/instances").json()["instances"]) == instances
    assert time.monotonic() - began < 10


def resident() -> int:
    """Memory of this process now, in bytes."""
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
    assert httpx.get(f"{address}/api/workflows/_health", timeout=10).status_code == 200


def test_a_large_head_is_refused_in_json_and_a_usual_one_is_not(address: str) -> None:
    def asked(size: int) -> bytes:
        return talk(address, HEAD + b"Connection: close\r\nX: " + b"x" * size + b"\r\n\r\n")

    assert status(asked(30_000)) == 200
    with closing(connect(address)) as connection:  # not more than it reads before it refuses
        connection.sendall(HEAD + b"X: " + b"x" * 66_000)
        answer = read(connection)
    assert status(answer) == 431
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["code"] == "HEADERS_TOO_LARGE"


@pytest.mark.parametrize("start", [b"", b"GET /", HEAD, HEAD + b"X: "])
def test_half_a_head_is_given_up_after_a_while(address: str, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(protocol, "SECONDS", 0.3)
    with closing(connect(address)) as connection:
        connection.settimeout(0.05)
        connection.sendall(start)
        answer, began = b"", time.monotonic()
        while not answer and time.monotonic() - began < 30:
            with suppress(TimeoutError):
                answer = connection.recv(65536)
            if start and not answer:
                with suppress(ConnectionError):
                    connection.sendall(b"x")  # it drips

    assert status(answer) == 408
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["code"] == "REQUEST_TIMEOUT"
    unharmed(address)


def test_a_request_that_takes_longer_than_its_head_may_is_answered(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SECONDS", 0.3)
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Content-Length: 2\r\nConnection: close\r\n\r\n".encode())
        time.sleep(0.6)
        connection.sendall(b"{}")
        assert status(read(connection)) == 200


def test_half_a_body_is_given_up_after_a_while(address: str) -> None:
    began = time.monotonic()
    answer = talk(address, f'{CREATE}Content-Length: 100\r\n\r\n{{"params": '.encode())

    assert time.monotonic() - began < 15
    assert status(answer) == 408
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["code"] == "REQUEST_TIMEOUT"
    unharmed(address)


def test_a_body_that_drips_is_given_up_after_a_while(address: str) -> None:
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Content-Length: 1000\r\n\r\n".encode())
        connection.settimeout(0.05)
        answer = b""
        began = time.monotonic()
        while not answer and time.monotonic() - began < 30:
            connection.sendall(b" ")
            with suppress(TimeoutError):
                answer = connection.recv(65536)

    assert status(answer) == 408
    unharmed(address)


def test_a_body_cut_off_by_the_end_of_the_connection_starts_nothing(address: str) -> None:
    for _ in range(20):
        with closing(connect(address)) as connection:
            connection.sendall(f'{CREATE}Content-Length: 100\r\n\r\n{{"params": 1'.encode())
    unharmed(address)


def test_an_endless_chunked_body_is_refused(address: str) -> None:
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        with suppress(ConnectionError, TimeoutError):
            while sent < 64 * 1024 * 1024:
                connection.sendall(chunk)
                sent += len(chunk)
        answer = read(connection)

    assert not answer or status(answer) == 413
    assert sent < 64 * 1024 * 1024
    unharmed(address)


def test_a_chunk_that_claims_to_be_huge_takes_no_memory(address: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with closing(connect(address)) as connection:
        connection.sendall(f"{CREATE}Transfer-Encoding: chunked\r\n\r\n7fffffff\r\nx".encode())
        time.sleep(0.2)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    unharmed(address)


def test_many_tiny_chunks_are_one_body(address: str) -> None:
    body = json.dumps({"id": "tiny", "params": "x" * 5000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    answer = talk(address, f"{CREATE}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode() + chunks)

    assert status(answer) == 200
    unharmed(address, instances=1)


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
    answer = talk(address, request_)

    assert not answer or 400 <= status(answer) < 500
    unharmed(address)


def test_requests_on_one_connection_are_answered_in_order(address: str) -> None:
    def create(n: int) -> bytes:
        body = b'{"id": "p%d", "params": %d}' % (n, n)
        return f"{CREATE}Content-Length: {len(body)}\r\n\r\n".encode() + body

    last = b"GET /api/workflows/none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = talk(address, b"".join(create(n) for n in range(10)) + last)

    assert [part.split(b'"id":"')[1][:2] for part in answer.split(b"HTTP/1.1 200")[1:]] == [
        b"p%d" % n for n in range(10)
    ]
    assert answer.count(b"HTTP/1.1 404") == 1
    unharmed(address, instances=10)


def test_many_slow_connections_do_not_keep_others_out(address: str) -> None:
    slow = [connect(address) for _ in range(200)]
    try:
        for n, connection in enumerate(slow):
            half = CREATE if n % 2 else f"{CREATE}Content-Length: 100\r\n\r\n{{"
            connection.sendall(half.encode())
        unharmed(address)
    finally:
        for connection in slow:
            connection.close()
    unharmed(address)
