"""Parses a database URL: the location of the server, and the store's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.errors import InvalidUrlError

N = TypeVar("N", int, float)

_SCHEMES = ("postgresql", "postgres")
_POOL_SIZE = 8
_SMALLEST_POOL = 3
"""A live transaction and a batch of commits may use one connection each, which leaves one for other calls."""
_CONNECT_TIMEOUT_S = 10.0
_STATEMENT_CACHE_SIZE = 200


@dataclass(frozen=True, slots=True)
class Settings:
    dsn: str
    """The URL for the driver. It may hold a password, so it must not appear in messages."""
    where: str
    """The name of the database in messages."""
    pool_size: int = _POOL_SIZE
    connect_timeout: float = _CONNECT_TIMEOUT_S
    """Seconds for which a call retries while the server is unavailable."""
    statement_cache_size: int = _STATEMENT_CACHE_SIZE


def parse(url: str) -> Settings:
    """Take the store's own settings out of the URL; the rest is the driver's."""
    parts = _split(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    own = {key: value for key, value in query if key in ("pool_size", "connect_timeout", "statement_cache_size")}
    rest = urlencode([(key, value) for key, value in query if key not in own])
    hosts = dict(query).get("host") or parts.netloc.rpartition("@")[2] or "localhost"
    return Settings(
        urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")),
        f"PostgreSQL at {hosts}{parts.path}",
        max(_number(own, "pool_size", _POOL_SIZE), _SMALLEST_POOL),
        _number(own, "connect_timeout", _CONNECT_TIMEOUT_S),
        _number(own, "statement_cache_size", _STATEMENT_CACHE_SIZE),
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidUrlError(
            f"this is not a database URL: {error}. Use postgresql://user@host:5432/database"
        ) from None
    if parts.scheme not in _SCHEMES:
        raise InvalidUrlError("the URL of a PostgreSQL database is like postgresql://user@host:5432/database")
    return parts


def _number(own: dict[str, str], key: str, default: N) -> N:
    try:
        value = type(default)(own.get(key, default))
    except ValueError:
        raise InvalidUrlError(f"{key}={own[key]} in the database URL is not a number") from None
    if value < 0:
        raise InvalidUrlError(f"{key}={own[key]} in the database URL must not be negative")
    return value
