"""Measures sizes and counts: of processes from /proc, of the database by queries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.database_probe import DatabaseProbe

from .flat import RULES, Series, What, rate

HAS_PROC = Path("/proc/self/status").exists()
"""True if the memory and open files of processes can be measured."""
_MB, _KB = 1024 * 1024, 1024
_WINDOW = 30.0
"""Seconds over which WAL is divided by runs."""

_SIZES = """
SELECT c.relname, c.relkind = 'r' AS is_table,
       CASE c.relkind WHEN 'r' THEN pg_table_size(c.oid) ELSE pg_relation_size(c.oid) END AS bytes
  FROM pg_class AS c WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'i')
"""
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' ORDER BY tablename"
_DEAD = "SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'holdfast'"
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'
"""
_SERVER = """
SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS written, (SELECT sum(size) FROM pg_ls_waldir()) AS wal,
       pg_notification_queue_usage() * 100 AS notifications,
       (SELECT count(*) FROM holdfast.holdfast_run WHERE completed_at IS NOT NULL) AS ended
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A measured process. A process that replaces a killed one has another name."""

    name: str
    pid: int
    counts: Path
    """The file to which the process writes its number of objects."""
    connections: int
    """The number of its open connections, counted by its proxy."""


class Sampler:
    def __init__(
        self, probe: DatabaseProbe, processes: Callable[[], Iterable[Process]], deleted: Callable[[], int]
    ) -> None:
        """``deleted`` returns the number of ended runs that were deleted."""
        self._probe = probe
        self._processes = processes
        self._deleted = deleted
        self._series: dict[tuple[What, str], Series] = {}
        self._written: list[tuple[float, float]] = []
        self._ended: list[tuple[float, float]] = []
        self._count_rows = ""

    def series(self) -> list[Series]:
        wal = Series(What.WAL_PER_RUN, "", rate(self._written, self._ended, _WINDOW))
        return sorted([*self._series.values(), wal], key=lambda one: (list(RULES).index(one.what), one.of))

    async def sample(self) -> None:
        at = time.monotonic()
        for process in self._processes():
            self._measure_process(at, process)
        self._add(What.ALL_CONNECTIONS, "", at, await self._probe.one(_CONNECTIONS))
        await self._measure_tables(at)
        await self._measure_server(at)

    def _add(self, what: What, of: str, at: float, value: float) -> None:
        self._series.setdefault((what, of), Series(what, of)).points.append((at, float(value)))

    def _measure_process(self, at: float, process: Process) -> None:
        self._add(What.CONNECTIONS, process.name, at, process.connections)
        try:
            if HAS_PROC:
                status = Path(f"/proc/{process.pid}/status").read_text()
                # Anonymous memory only: the kernel decides which pages of mapped files are resident.
                resident = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
                self._add(What.MEMORY, process.name, at, int(resident) * _KB / _MB)
                self._add(What.DESCRIPTORS, process.name, at, len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
            self._add(What.OBJECTS, process.name, at, json.loads(process.counts.read_text())["objects"])
        except (OSError, StopIteration):
            return  # the process was killed just now, or has not written its counts yet

    async def _measure_tables(self, at: float) -> None:
        for name, is_table, size in await self._probe.rows(_SIZES):
            self._add(What.TABLE if is_table else What.INDEX, name, at, size / _KB)
        for name, dead in await self._probe.rows(_DEAD):
            self._add(What.DEAD, name, at, dead)
        if not self._count_rows:
            tables = [row[0] for row in await self._probe.rows(_TABLES)]
            self._count_rows = " UNION ALL ".join(f"SELECT '{t}', count(*) FROM holdfast.{t}" for t in tables)
        for name, rows in await self._probe.rows(self._count_rows):
            self._add(What.ROWS, name, at, rows)

    async def _measure_server(self, at: float) -> None:
        deleted = self._deleted()
        [row] = await self._probe.rows(_SERVER)
        self._add(What.WAL, "", at, float(row["wal"]) / _MB)
        self._add(What.NOTIFICATIONS, "", at, row["notifications"])
        self._written.append((at, float(row["written"]) / _KB))
        self._ended.append((at, deleted + row["ended"]))
