"""``holdfast mcp``: the MCP server of an app."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.serve import AppDir, Target


class Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"


def mcp(
    target: Target,
    transport: Annotated[
        Transport, typer.Option("--transport", metavar="NAME", help="stdio, or http: streamable HTTP at /mcp.")
    ] = Transport.STDIO,
    write: Annotated[
        bool, typer.Option("--write", help="Also offer tools that start, repair and control runs.")
    ] = False,
    actor: Annotated[str, typer.Option("--actor", metavar="NAME", help="The actor in the audit records.")] = "mcp",
    port: Annotated[int, typer.Option("--port", metavar="N", min=1, max=65535, help="The port of http.")] = 8788,
    app_dir: AppDir = Path(),
) -> None:
    """Serve tools for the runs of an app to a model, over the Model Context Protocol.

    The tools list, search and explain runs, and check them against the code; --write adds tools that start, retry, fork
    and control runs. No worker runs in this process. HTTP is served to this machine only, on 127.0.0.1.

    \b
    Examples:
      holdfast mcp shop:app                                    for a client that starts this command
      holdfast mcp shop:app --write --actor ann                with tools that write, in the name of ann
      holdfast mcp shop:app --transport http --port 8788       on http://127.0.0.1:8788/mcp

    Exit code 0 when the client closes the connection, 1 if it cannot serve, 2 if there is no such app.
    """
    from holdfast.cli.loading import load_app
    from holdfast.mcp import mcp_server

    app = load_app(target, app_dir)

    async def serve() -> None:
        server = mcp_server(app, write=write, actor=actor)
        async with app.connect():
            if transport is Transport.STDIO:
                await server.run_stdio_async()
            else:
                await server.run_streamable_http_async(host="127.0.0.1", port=port)

    asyncio.run(serve())
