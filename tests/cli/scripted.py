"""A server that answers what a test tells it to, one answer per request, and remembers what it was asked."""

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
class Answer:
    """``drop``: hang up instead of answering. ``drip``: the body slowly, a byte at a time."""

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
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float


class Scripted:
    def __init__(self, port: int = 0) -> None:
        self.answers: deque[Answer] = deque()
        self.asked: list[Asked] = []
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.base = f"http://127.0.0.1:{self._server.server_port}/api/workflows"

    @contextmanager
    def running(self) -> Iterator[Scripted]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def will_answer(self, *answers: Answer) -> None:
        self.answers.extend(answers)


def _handler(script: Scripted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers}
            script.asked.append(Asked(self.command, self.path, headers, body, time.monotonic()))
            self._give(script.answers.popleft() if script.answers else Answer(418, {"message": "no answer left"}))

        do_POST = do_GET

        def _give(self, answer: Answer) -> None:
            script.stopping.wait(answer.delay)
            if answer.drop:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {"content-length": str(len(answer.content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in answer.content if answer.drip else [answer.content]:
                if answer.drip:
                    script.stopping.wait(0.05)
                self.wfile.write(bytes([part]) if isinstance(part, int) else part)
                self.wfile.flush()

        def handle(self) -> None:
            with suppress(OSError):  # the command has hung up
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
