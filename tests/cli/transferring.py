"""Helpers for tests of transfers: empty databases, and a command that is killed at a given write."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.cli.transfer import Address
from holdfast.ports import Runtime
from holdfast.store_url import make_transfer, migrate
from postgres_harness import CleanSchemas


@asynccontextmanager
async def places(folder: Path) -> AsyncIterator[tuple[Address, Address]]:
    """A SQLite file and a PostgreSQL schema, both empty."""
    with CleanSchemas.one() as (url, schema):
        postgres = Address(url, schema)
        await migrate(url, schema=schema)
        try:
            yield Address(f"sqlite:///{folder / 'shop.db'}", None), postgres
        finally:
            await _release(postgres)


async def _release(address: Address) -> None:
    database = make_transfer(*address, Runtime())
    await database.open()
    await database.release()
    await database.close()


def quiet(_: str) -> None: ...


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from holdfast.cli import transfer
from holdfast.payloads import Aes
from holdfast.cli.transfer import Address

transfer._BATCH = 3
left = int(sys.argv[1])
command, source, schema, target = sys.argv[2:]

def killing(write):
    def wrapped(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*arguments)
    return wrapped

if command == "import":
    make = transfer.make_transfer
    def make_dying(*arguments):
        database = make(*arguments)
        database.write = killing(database.write)
        return database
    transfer.make_transfer = make_dying
    transfer.import_file(Path(source), Address(target, schema or None), print)
elif command == "export":
    transfer._write_line = killing(transfer._write_line)
    transfer.export_file(Address(source, None), Path(target), print)
else:
    make = transfer.make_transfer
    def make_killing(*arguments):
        database = make(*arguments)
        database.write = killing(database.write)
        return database
    transfer.make_transfer = make_killing
    schemas = [schema or None if url.startswith("postgresql") else None for url in (source, target)]
    transfer.move(Address(source, schemas[0]), Address(target, schemas[1]), print)
"""


def killed(*arguments: object) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
