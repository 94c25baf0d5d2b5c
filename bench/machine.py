"""Properties of the machine that the numbers depend on, and a temporary directory on a disk."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from importlib import metadata
from pathlib import Path

import apsw

MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")
FSYNC_SAMPLES = 200


def fsync_ms(where: Path) -> float:
    """Median time of a 4 KiB append and its fsync."""
    samples: list[float] = []
    with (where / "fsync").open("wb", buffering=0) as file:
        for _ in range(FSYNC_SAMPLES):
            started = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            samples.append((time.perf_counter() - started) * 1000)
    (where / "fsync").unlink()
    return statistics.median(samples)


def load() -> float:
    return os.getloadavg()[0]


def load_note(before: float) -> str:
    """The load before and after, with a warning if the cores were busy before. The bench itself loads one or two."""
    busy = before > (os.cpu_count() or 1) / 2
    warning = " The machine was busy before the bench began: do not quote these numbers." if busy else ""
    return f"Load {before:.1f} before, {load():.1f} after.{warning}"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts(where: Path) -> list[str]:
    system = f"{platform.system()} {platform.machine()}"
    return [
        f"Python {platform.python_version()}, {system}, {os.cpu_count()} cores, load {load():.1f} before the start",
        f"SQLite {apsw.sqlite_lib_version()} (apsw), fsync of a 4 KiB append {fsync_ms(where):.2f} ms p50",
        f"Holdfast {version('holdfast') or 'from this directory'}, DBOS {version('dbos') or 'not installed'}",
    ]


def scratch_parent() -> str | None:
    """The parent of the databases: the system's temporary directory, or this one if that is in memory."""
    return "." if _filesystem(Path(tempfile.gettempdir()).resolve()) in MEMORY_FILESYSTEMS else None


def _filesystem(path: Path) -> str:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    entries = (line.split()[1:3] for line in mounts.read_text().splitlines())
    covering = [(Path(point), kind) for point, kind in entries if path.is_relative_to(point)]
    return max(covering, key=lambda mount: len(mount[0].parts))[1] if covering else ""
