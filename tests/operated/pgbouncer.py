"""PgBouncer in transaction mode before a server, if it is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from functools import cache, partial
from pathlib import Path

from chaos.server import PORT, Server
from chaos.waiting import until
from postgres_server import die_with_parent

_PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
_CONFIG = """
[databases]
* = host={server} port={port} user=postgres

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
server_login_retry = 0.2
logfile = {folder}/log
pidfile = {folder}/pid
admin_users = postgres
{more}
"""


@cache
def version() -> tuple[int, ...] | None:
    """The version of the installed PgBouncer; None: there is none."""
    if _PROGRAM is None:
        return None
    text = subprocess.run([_PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", text)
    return None if found is None else tuple(map(int, found.groups()))


class PgBouncer:
    """A pooler on a socket of its own. ``settings`` are added to its configuration."""

    def __init__(self, server: Server, **settings: object) -> None:
        self.sockets = server.folder / "pgbouncer"
        self.sockets.mkdir()
        self._config = self.sockets / "config.ini"
        self._user = server.user
        self._process: subprocess.Popen[bytes] | None = None
        more = "\n".join(f"{name} = {value}" for name, value in settings.items())
        self._config.write_text(_CONFIG.format(server=server.sockets, port=PORT, folder=self.sockets, more=more))
        if self._user is not None:
            for path in (self.sockets, self._config):
                shutil.chown(path, self._user)

    async def start(self) -> None:
        assert _PROGRAM is not None
        self._process = subprocess.Popen(
            [_PROGRAM, "--quiet", self._config], user=self._user, preexec_fn=partial(die_with_parent, 9)
        )
        await until(lambda: (self.sockets / f".s.PGSQL.{PORT}").exists(), self.log_text)

    def lead_to(self, server: Server) -> None:
        """Lead new connections to another server; those of clients stay open."""
        assert self._process is not None
        text = self._config.read_text()
        self._config.write_text(re.sub(r"host=\S+", f"host={server.sockets}", text, count=1))
        self._process.send_signal(1)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def log_text(self) -> str:
        log = Path(self.sockets / "log")
        return log.read_text(errors="replace") if log.exists() else ""
