"""The demo's worker process: runs until its standard input is closed, and writes reports to standard output.

A report is one line with a JSON array. It is written without a buffer, so that reports written before a kill are
not lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from holdfast.cli.demo_order import order_app


def write_report(*words: str) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


class ReportHandler(logging.Handler):
    """Writes the engine's warnings as reports."""

    def emit(self, record: logging.LogRecord) -> None:
        write_report("warns", record.getMessage())


async def serve(url: str) -> None:
    app, _ = order_app(url, lambda step, kind: write_report(kind, step))
    async with app:
        write_report("ready")
        await input_closed()


async def input_closed() -> None:
    """Wait until the parent process closes this process's input, or ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    logging.getLogger("holdfast").addHandler(ReportHandler())
    asyncio.run(serve(sys.argv[1]))
