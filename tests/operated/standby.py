"""A streaming standby of a server, made by ``pg_basebackup``."""

from __future__ import annotations

from chaos.server import PORT, Server


class Standby(Server):
    """A standby. Its name for ``synchronous_standby_names`` is ``standby``."""

    def __init__(self, primary: Server, **settings: object) -> None:
        self._primary = primary
        super().__init__(**settings)

    def _fill(self) -> None:
        primary = f"host={self._primary.sockets} port={PORT} user=postgres application_name=standby"
        copy = self._run(
            "pg_basebackup", "-d", primary, "-D", self._data, "-R", "-X", "stream", "-c", "fast", "--no-sync"
        )
        assert copy.returncode == 0, copy.stderr.decode()

    async def promote(self) -> None:
        await self.execute("SELECT pg_promote(true, 30)")


def url_of_all(servers: list[Server], database: str) -> str:
    """A URL that names several servers: connections go to the one that can be written."""
    hosts, ports = ",".join(str(server.sockets) for server in servers), ",".join(str(PORT) for _ in servers)
    return f"postgresql://postgres@/{database}?host={hosts}&port={ports}&target_session_attrs=read-write"
