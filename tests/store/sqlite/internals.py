"""Access to the internals of a store: its writer connection, and other processes on its file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import apsw

from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.jobs import Mode
from store import processes

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
    return processes.start(PRELUDE, code, *args)
