"""Loads the package's ``.sql`` files, for one schema: named statements, numbered migrations, functions and views.

Tables and composite types are created by migrations, which run once. Functions and views are replaced as a whole when a
newer release opens the database. Workers of the previous release may still be running then, so a function keeps its
name, its arguments and their meaning for one release: a function with other arguments gets another name, and a
migration of a later release drops the old one. An additional argument with a default makes another function too:
PostgreSQL keeps both, and calls become ambiguous.

Functions and statements get the columns of batches, and constants, by placeholders (``sql_template``). Migrations do
not: a migration stays as it was released.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from holdfast._version import __version__
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError
from holdfast.store.postgres.sql_template import expand

_NAME_PREFIX = "-- name: "
_MAX_SCHEMA_LENGTH = 50
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]*")


class Migration(NamedTuple):
    version: int
    name: str
    script: str


class Functions(NamedTuple):
    """The functions and views of a release."""

    release: int
    """The package's version as a number: 1.2.3 is 1_002_003."""
    digest: int
    """A hash of the script with its placeholders replaced, except the schema, as a 64-bit integer."""
    script: str

    def must_replace(self, release: int, digest: int) -> bool:
        """True if these functions must replace those in the database: newer, or different in the same release."""
        return self.release > release or (self.release == release and self.digest != digest)


def check_schema(name: object) -> str:
    """Validate a schema name. The name becomes part of the text of every statement, so quoting alone is not enough."""
    if isinstance(name, str) and len(name) <= _MAX_SCHEMA_LENGTH and _SCHEMA.fullmatch(name):
        return name
    raise InvalidOptionError(
        f"schema={shown(name)}: the name of a schema has 1 to {_MAX_SCHEMA_LENGTH} letters, digits and '_', and does "
        "not start with a digit or with pg_, which is reserved by PostgreSQL"
    )


def channel(schema: str) -> str:
    """The notification channel of the stores that use this schema."""
    return f"holdfast_{schema}"


@cache
def statements(group: str, schema: str) -> dict[str, str]:
    """The statements of ``sql/<group>.sql`` by the names their ``-- name:`` comments give them."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _folder("sql").joinpath(f"{group}.sql").read_text("utf-8").splitlines():
        if line.startswith(_NAME_PREFIX):
            lines = found.setdefault(line.removeprefix(_NAME_PREFIX).strip(), [])
        elif not line.startswith("--"):
            lines.append(line)
    texts = {name: expand("\n".join(lines).strip().removesuffix(";")) for name, lines in found.items()}
    return {name: _for_schema(schema, text) for name, text in texts.items()}


def groups() -> list[str]:
    return sorted(file.name.removesuffix(".sql") for file in _folder("sql").iterdir())


@cache
def migrations(schema: str) -> tuple[Migration, ...]:
    """All migrations, oldest first."""
    scripts = [file for file in _folder("migrations").iterdir() if file.name.endswith(".sql")]
    read = (Migration(int(file.name[:4]), file.name, _for_schema(schema, file.read_text("utf-8"))) for file in scripts)
    return tuple(sorted(read))


@cache
def functions(schema: str) -> Functions:
    """The functions and views of this release. A function may call one that is created after it."""
    scripts = sorted((file for file in _folder("functions").iterdir()), key=lambda file: file.name)
    text = expand("\n".join(file.read_text("utf-8") for file in scripts))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
    release = sum(int(part) * 1000**n for n, part in enumerate(reversed(__version__.split("."))))
    return Functions(release, digest, _for_schema(schema, f"SET LOCAL check_function_bodies = off;\n{text}"))


def _for_schema(schema: str, text: str) -> str:
    return text.replace("{schema}", f'"{schema}"').replace("{channel}", channel(schema))


def _folder(name: str) -> Traversable:
    return files("holdfast.store.postgres").joinpath(name)
