"""The HTTP protocol of ``holdfast serve``: uvicorn's httptools protocol, with limits on the head of a request.

The parser itself keeps headers of any size for any time, before authorization: 50 MB of small headers occupy 700 MB
of memory. ``holdfast.http.bodies`` limits bodies. What arrives after the response, the parser discards without a limit.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.http.responses import MAX_DISCARDED_BYTES

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of one head: request line and headers, or trailers. The data of one socket read may exceed the limit."""
HEAD_TIMEOUT_S = 30.0
"""Time limit for receiving a head, counted from the connection or from the head's first byte."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses heads that are too large or too slow, with a JSON body like every other error.

    Closes the connection if too much of a body arrives after the response.
    """

    _unparsed = 0
    _discarded = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)  # the callbacks below reset the count when a part is complete
        if self._unparsed > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "HEADERS_TOO_LARGE", f"the headers have more than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._discarded = 0
        self._start_deadline()

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._cancel_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "INVALID_REQUEST", msg)

    def _start_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "REQUEST_TIMEOUT", f"the request did not arrive within {HEAD_TIMEOUT_S:g} seconds")

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"message": message, "code": code})
        head = {
            "content-type": "application/json",
            "content-length": len(body),
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "connection": "close",
        }
        lines: list[Any] = [f"HTTP/1.1 {status} ", *(f"{name}: {value}" for name, value in head.items()), "", body]
        self.transport.write("\r\n".join(lines).encode())
        self.transport.close()
