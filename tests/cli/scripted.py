"""A server that sends the responses a test has prepared, one per request, and records the requests."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORKFLOWS = {"workflows": [{"name": "greet"}]}


@dataclass(frozen=True)
class Response:
    """A prepared response. ``drop``: close the connection instead. ``drip``: send the body slowly, byte by byte."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    drip: bool = False

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float


class ScriptedServer:
    def __init__(self, port: int = 0) -> None:
        self.responses: deque[Response] = deque()
        self.requests: list[ReceivedRequest] = []
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.base = f"http://127.0.0.1:{self._server.server_port}/api/workflows"

    @contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def will_respond(self, *responses: Response) -> None:
        self.responses.extend(responses)


def _handler(script: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers}
            script.requests.append(ReceivedRequest(self.command, self.path, headers, body, time.monotonic()))
            self._respond(
                script.responses.popleft() if script.responses else Response(418, {"message": "no response left"})
            )

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def _respond(self, response: Response) -> None:
            script.stopping.wait(response.delay)
            if response.drop:
                self.close_connection = True
                return
            self.send_response(response.status)
            for name, value in {"content-length": str(len(response.content)), **response.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in response.content if response.drip else [response.content]:
                if response.drip:
                    script.stopping.wait(0.05)
                self.wfile.write(bytes([part]) if isinstance(part, int) else part)
                self.wfile.flush()

        def handle(self) -> None:
            with suppress(OSError):  # the command has closed the connection
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
