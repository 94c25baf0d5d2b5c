"""HTTP on a connection of ``holdfast serve``: uvicorn's fast protocol, with bounds on what comes before a body.

The parser keeps headers of any size for any time, before anybody is asked who sends them: 50 MB of small ones become
700 MB of memory. Bodies are bounded where they are read (``holdfast.http.bodies``).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST = 64 * 1024
"""Bytes of one head: request line and headers, also those that follow a chunked body. One read of a socket more."""
SECONDS = 30.0
"""A head has to be here by then, counted from the connection or from its first byte."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses heads that are too large or come too slowly, and says so in JSON like every other error."""

    _unparsed = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)  # sets it back whenever something is complete
        if self._unparsed > LARGEST and not self.transport.is_closing():
            self._refuse(431, "HEADERS_TOO_LARGE", f"the headers have more than {LARGEST} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "INVALID_REQUEST", msg)

    def _expect_head(self) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(SECONDS, self._too_slow)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "REQUEST_TIMEOUT", f"the request did not arrive within {SECONDS:g} seconds")

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
