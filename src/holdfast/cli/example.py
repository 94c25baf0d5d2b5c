"""``holdfast dev --example``: a seeded database, two worker processes that may be killed, and the dashboard."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.cli.server import ServeOptions

TARGET = "holdfast.cli.example_app:app"


def run_example(options: ServeOptions) -> int:
    """Seed a database in a temporary directory, and serve until a signal; returns the exit code."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-example-"))
    url = f"sqlite:///{directory / 'example.db'}"
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url}
    try:
        _seed(url)
        workers = _start(["worker", "--processes=2", TARGET], environment)
        server = _start(["serve", *options.arguments()], environment)
        print(
            f"Order   http://{options.host}:{options.port}/#/run/order/o-1 has a button that kills its worker",
            flush=True,
        )
        return _wait(server, workers)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _seed(url: str) -> None:
    from holdfast.cli.example_app import seed

    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # runs that fail are part of the example
    began = time.monotonic()
    print("Example  50 workflows and their runs of the last two hours …", end=" ", flush=True)
    count = asyncio.run(seed(url))
    print(f"{count:,} runs in {time.monotonic() - began:.1f} s", flush=True)


def _start(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", "-m", "holdfast.cli", *arguments], env=environment)  # noqa: S603


def _wait(server: subprocess.Popen[bytes], workers: subprocess.Popen[bytes]) -> int:
    """Wait for the server, and stop the workers. A signal of the terminal reaches all of them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.terminate())
    try:
        return server.wait()
    finally:
        workers.terminate()
        workers.wait()
