"""The demo's worker process: works until its standard input is closed, and says on standard output what it does.

One JSON array per line, written without a buffer: what a step said before the process was killed has been said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from holdfast.cli.demo_order import order_app


def say(*words: str) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


class Saying(logging.Handler):
    """Passes the engine's warnings on."""

    def emit(self, record: logging.LogRecord) -> None:
        say("warns", record.getMessage())


async def serve(url: str) -> None:
    app, _ = order_app(url, lambda step, what: say(what, step))
    async with app:
        say("ready")
        await input_closed()


async def input_closed() -> None:
    """The one who started this process stops it by closing its input, also by dying."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    logging.getLogger("holdfast").addHandler(Saying())
    asyncio.run(serve(sys.argv[1]))
