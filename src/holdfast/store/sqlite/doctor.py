"""Checks of a SQLite file for ``holdfast doctor``."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from holdfast.store.protocol.diagnosis import WAITING_MS, Counts, Finding, Severity, Waiting, examine_space
from holdfast.store.sqlite import migrate, opening
from holdfast.store.sqlite.errors import translate
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.sql import migrations, statements

_SQL = statements("doctor")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p")
_LONG_WAL = 256 * 1024**2
_QUICK_CHECK_MAX = 1024**3
_MANY_FREE_PAGES = 5_000


class SqliteDoctor:
    def __init__(
        self, path: str, now: Callable[[], int], driver: opening.SqliteDriver = opening.SqliteDriver.APSW
    ) -> None:
        self._path = path
        self._driver = driver
        self._now = now
        self._connection: apsw.Connection

    async def open(self) -> Finding | None:
        """Open the file; returns why that is not possible."""
        try:
            opening.prepare(self._path, create=False)
            self._connection = opening.writer(self._path, Guard(), self._driver)
            found, latest = migrate.version(self._connection), migrations()[-1].version
        except Exception as error:
            return Finding(Severity.ERROR, "file", str(translate(error, self._path, opening.BUSY_S)))
        if found != latest:
            text = f"the schema has version {found}, and this release of Holdfast needs {latest}"
            return Finding(Severity.ERROR, "schema", text, "holdfast migrate URL, or upgrade Holdfast")
        return None

    async def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()

    async def settings(self, lease_ms: int) -> list[Finding]:
        del lease_ms  # a file has no latency
        return [*self._file(), *self._space(), *self._pages()]

    def _file(self) -> Iterator[Finding]:
        version = self._connection.execute("SELECT sqlite_version()").get
        yield Finding(Severity.OK, "versions", f"SQLite {version}, schema {migrations()[-1].version}")
        mode = self._connection.pragma("journal_mode")
        if mode != "wal":
            yield Finding(
                Severity.ERROR, "journal", f"the journal mode is {mode}, not wal", "put the file on a local disk"
            )
        kind = _file_system(Path(self._path).resolve())
        if kind in _NETWORK:
            yield Finding(
                Severity.ERROR,
                "file system",
                f"the file is on a network file system ({kind}), whose locks SQLite cannot trust",
                "put the file on a local disk, or `holdfast move` to PostgreSQL",
            )
        if stat.S_IMODE(Path(self._path).stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
            yield Finding(Severity.WARNING, "rights", "other users may read the file", f"chmod 600 {self._path}")
        if Path(self._path).stat().st_size < _QUICK_CHECK_MAX:
            damage = self._connection.execute("PRAGMA quick_check(1)").get
            if damage != "ok":
                yield Finding(Severity.ERROR, "contents", f"the file is damaged: {damage}", "restore a backup")

    def _space(self) -> Iterator[Finding]:
        free = shutil.disk_usage(Path(self._path).resolve().parent).free
        yield from examine_space(free, "the disk of the file")
        log = Path(f"{self._path}-wal")
        size = log.stat().st_size if log.exists() else 0
        if size > _LONG_WAL:
            text = f"the write-ahead log has {size // 1024**2} MB: a reader keeps it from being emptied"
            yield Finding(Severity.WARNING, "wal", text, "end processes that read the file for long (backups, shells)")

    def _pages(self) -> Iterator[Finding]:
        pages, free = self._connection.pragma("page_count"), self._connection.pragma("freelist_count")
        if free > _MANY_FREE_PAGES and free > pages // 2:
            text = f"{free} of {pages} pages of the file are free"
            if self._connection.pragma("auto_vacuum") == 2:
                yield Finding(Severity.WARNING, "bloat", text, "holdfast prune URL --older-than 90d")
            else:
                fix = f"stop the workers, then sqlite3 {self._path} 'PRAGMA auto_vacuum = incremental; VACUUM'"
                yield Finding(Severity.WARNING, "bloat", text, fix)

    async def counts(self) -> Counts:
        value = {
            name: self._connection.execute(_SQL[name]).get
            for name in ("fence", "open_runs", "stored", "parked_runs", "suspects", "parked_outbox", "last_id")
        }
        waiting = [Waiting(*row) for row in self._connection.execute(_SQL["waiting"], (self._now(), WAITING_MS))]
        return Counts(
            value["fence"], value["open_runs"], value["stored"], value["parked_runs"], value["suspects"],
            value["parked_outbox"], value["last_id"], waiting,
        )  # fmt: skip

    async def workers(self) -> list[tuple[tuple[str, ...], str | None]]:
        """Queues and version of each living worker."""
        found = self._connection.execute(_SQL["living_workers"], (self._now(),))
        return [(tuple(json.loads(queues)), version) for queues, version in found]


def _file_system(path: Path) -> str:
    """The type of the file system with this file; empty if it is not known."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8").splitlines()
    except OSError:
        return ""
    mounts = {parts[1]: parts[2] for parts in (line.split() for line in lines) if len(parts) > 2}
    return max(((len(place), kind) for place, kind in mounts.items() if _is_below(path, place)), default=(0, ""))[1]


def _is_below(path: Path, place: str) -> bool:
    return place == "/" or str(path).startswith(place.rstrip(os.sep) + os.sep)
