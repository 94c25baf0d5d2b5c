"""Cost of a workload on a PostgreSQL server: processor time, and the time in each function of the store.

The processor time is that of all processes of the server, including those that have ended. The time in functions is
wall clock, counted by the server itself (`track_functions`) in a round of its own, because counting takes time too.
"""

from __future__ import annotations

import os
from pathlib import Path

import asyncpg

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM = 1, 11, 12, 13, 14
"""Positions in /proc/PID/stat after the name of the process."""
_SHARE_SHOWN = 0.01
_FUNCTIONS = """
SELECT funcname, calls, total_time, self_time FROM pg_stat_user_functions WHERE funcname LIKE 'holdfast%'
 ORDER BY self_time DESC
"""


def processor_seconds(postmaster: int) -> float:
    """Processor time (user and system) of the server so far."""
    own = _stat(postmaster)
    ticks = sum(own[position] for position in (_USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = _stat(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[_PARENT] == postmaster:
            ticks += fields[_USER] + fields[_SYSTEM]
    return ticks / _TICKS


def _stat(pid: int) -> list[int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return [0, *map(int, fields[1:])]


async def count_functions(url: str) -> None:
    """Let the server count the calls of functions on connections that are opened from now on."""
    connection = await asyncpg.connect(url)
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET track_functions = 'all'")
    await connection.close()


async def function_table(url: str, steps: int) -> list[str]:
    """One line per function: calls, and microseconds per step in the function itself and in all that it calls."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(_FUNCTIONS)
    await connection.close()
    everything = sum(row["self_time"] for row in rows) or 1.0
    return [
        f"  {row['funcname']}: {row['calls']:,} calls, {row['self_time'] * 1000 / steps:.1f} us per step "
        f"({row['total_time'] * 1000 / steps:.1f} with the functions that it calls)"
        for row in rows
        if row["self_time"] > everything * _SHARE_SHOWN
    ]
