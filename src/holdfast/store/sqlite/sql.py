"""Loads the package's ``.sql`` files: named statements, and numbered migrations."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

_MARK = "-- name: "


class Migration(NamedTuple):
    version: int
    name: str
    script: str


@cache
def statements(group: str) -> dict[str, str]:
    """The statements of ``sql/<group>.sql`` by the names in their ``-- name:`` comments."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _folder("sql").joinpath(f"{group}.sql").read_text("utf-8").splitlines():
        if line.startswith(_MARK):
            lines = found.setdefault(line.removeprefix(_MARK).strip(), [])
        elif not line.startswith("--"):
            lines.append(line)
    return {name: "\n".join(text).strip().removesuffix(";") for name, text in found.items()}


def groups() -> list[str]:
    return sorted(file.name.removesuffix(".sql") for file in _folder("sql").iterdir())


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, oldest first."""
    found = (file for file in _folder("migrations").iterdir() if file.name.endswith(".sql"))
    read = (Migration(int(file.name[:4]), file.name, file.read_text("utf-8")) for file in found)
    return tuple(sorted(read))


def _folder(name: str) -> Traversable:
    return files("holdfast.store.sqlite").joinpath(name)
