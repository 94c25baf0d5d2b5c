"""The decorator of request bodies."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ConfigDict, with_config

Body = TypeVar("Body", bound=type)

_CONFIG = ConfigDict(extra="forbid", strict=True)


def strict(body: Body) -> Body:
    """Refuse unknown fields, and values that would have to be converted. Not inherited: each class is decorated."""
    return with_config(_CONFIG)(body)
