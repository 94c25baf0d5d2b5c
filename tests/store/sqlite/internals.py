"""Access to the internals of a store: its writer connection, and other processes on its file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import apsw

from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.jobs import Mode

SOURCE = Path(__file__).parents[3] / "src"
TESTS = Path(__file__).parents[2]

PRELUDE = """
import asyncio, os, signal, sys
import apsw
from store.world import FLOW, LEASE, FakeClock, World, result, turn
from holdfast.errors import *
from holdfast.store.protocol import *
from holdfast.store.sqlite import SqliteStore

path = sys.argv[1]
"""


async def on_writer(store: SqliteStore, use: Callable[[apsw.Connection], Any]) -> Any:
    """Call ``use`` with the writer's connection, on the writer's thread."""
    assert store._writer is not None
    return await store._writer.submit(lambda tx, _: use(tx.connection), None, Mode.BARE)  # type: ignore[arg-type]


def process(code: str, *args: str) -> subprocess.Popen[str]:
    """Start a Python process that has the helpers of the suite imported, and the file's path as ``path``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + dedent(code), *args],
        env=os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> str:
    """The output of a process that has ended without an error."""
    out, err = started.communicate(timeout=100)
    assert started.returncode == 0, err
    return out.strip()
