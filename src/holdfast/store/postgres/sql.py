"""Loads the package's ``.sql`` files: named statements, and numbered migrations, written for one schema."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_MARK = "-- name: "
_LONGEST_SCHEMA = 50
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]*")


class Migration(NamedTuple):
    version: int
    name: str
    script: str


def check_schema(name: object) -> str:
    """A schema's name becomes part of the text of every statement, so it is checked and not only quoted."""
    if isinstance(name, str) and len(name) <= _LONGEST_SCHEMA and _SCHEMA.fullmatch(name):
        return name
    raise InvalidOptionError(
        f"schema={shown(name)}: the name of a schema has 1 to {_LONGEST_SCHEMA} letters, digits and '_', does not "
        "start with a digit, and pg_ is PostgreSQL's own"
    )


def channel(schema: str) -> str:
    """Where stores on this schema tell each other of changes."""
    return f"holdfast_{schema}"


@cache
def statements(group: str, schema: str) -> dict[str, str]:
    """The statements of ``sql/<group>.sql`` by the names their ``-- name:`` comments give them."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _folder("sql").joinpath(f"{group}.sql").read_text("utf-8").splitlines():
        if line.startswith(_MARK):
            lines = found.setdefault(line.removeprefix(_MARK).strip(), [])
        elif not line.startswith("--"):
            lines.append(line)
    return {name: _written_for(schema, "\n".join(text).strip().removesuffix(";")) for name, text in found.items()}


def groups() -> list[str]:
    return sorted(file.name.removesuffix(".sql") for file in _folder("sql").iterdir())


@cache
def migrations(schema: str) -> tuple[Migration, ...]:
    """All migrations, oldest first. One is a file, or a folder of files that are done in the order of their names."""
    found = (one for one in _folder("migrations").iterdir() if one.is_dir() or one.name.endswith(".sql"))
    read = (Migration(int(one.name[:4]), one.name, _written_for(schema, _text(one))) for one in found)
    return tuple(sorted(read))


def _text(one: Traversable) -> str:
    files = sorted(one.iterdir(), key=lambda file: file.name) if one.is_dir() else [one]
    return "\n".join(file.read_text("utf-8") for file in files)


def _written_for(schema: str, text: str) -> str:
    return text.replace("{schema}", f'"{schema}"').replace("{channel}", channel(schema))


def _folder(name: str) -> Traversable:
    return files("holdfast.store.postgres").joinpath(name)
