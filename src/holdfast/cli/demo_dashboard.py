"""The end of the demo: the dashboard with the order, served until Ctrl-C. ``app`` is what the server loads."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from holdfast.cli.demo_order import order_app

HOST, PORT = "127.0.0.1", 8787
TARGET = "holdfast.cli.demo_dashboard:app"

app, _ = order_app(None, lambda _step, _kind: None)
app.program = "demo"


def offer(path: Path, console: Console) -> None:
    """Name the link; in a terminal, serve it after Enter."""
    if importlib.util.find_spec("uvicorn") is None:
        console.print("In a browser: pip install 'holdfast[server]', then holdfast dev --example")
        return
    if not (sys.stdin.isatty() and console.is_terminal):
        console.print("In a browser, with 5,000 runs: holdfast dev --example")
        return
    port = _free_port()
    console.print(f"The order in a browser: [bold]http://{HOST}:{port}/#/run/demo.order/order-o-1[/bold]")
    try:
        console.input("Enter serves this link until Ctrl-C; Ctrl-C ends the demo. ")
        environment = {**os.environ, "HOLDFAST_DATABASE_URL": f"sqlite:///{path}"}
        options = ["--dashboard", "--debug", f"--host={HOST}", f"--port={port}", "--", TARGET]
        command = [sys.executable, "-P", "-m", "holdfast.cli", "serve", *options]
        subprocess.run(command, env=environment, check=False)  # noqa: S603
    except (EOFError, KeyboardInterrupt):
        console.print()


def _free_port() -> int:
    """The usual port, or another one if that is in use."""
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    return PORT
