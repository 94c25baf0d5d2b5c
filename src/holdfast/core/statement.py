"""A user's SQL statement, as a step passes it on to the store."""

from __future__ import annotations

from typing import Any, NamedTuple


class Statement(NamedTuple):
    """A user's SQL statement that is executed in the commit of a step."""

    sql: str
    args: tuple[Any, ...]
