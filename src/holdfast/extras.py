"""Optional dependencies: a missing package is reported with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from holdfast.errors import MissingExtraError

_PACKAGES = {
    "postgres": ("asyncpg",),
    "server": ("fastapi", "starlette", "uvicorn", "httptools", "uvloop"),
    "otel": ("opentelemetry",),
    "pydantic-ai": ("pydantic_ai",),
    "langgraph": ("langgraph", "langchain_core"),
    "openai-agents": ("agents", "openai"),
    "mcp": ("mcp",),
    "django": ("django",),
    "payloads": ("zstandard", "cryptography"),
    "s3": ("obstore",),
    "sqlalchemy": ("sqlalchemy",),
}


@contextmanager
def extra(
    name: Literal[
        "postgres",
        "server",
        "otel",
        "pydantic-ai",
        "langgraph",
        "openai-agents",
        "mcp",
        "django",
        "payloads",
        "s3",
        "sqlalchemy",
    ],
    feature: str,
) -> Iterator[None]:
    """Import modules of an extra. ``feature``: what needs them, for the error message."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES[name]:
            raise
        raise MissingExtraError(
            f"{feature} needs the package {package}, which is not installed. Run: pip install 'holdfast[{name}]'"
        ) from error
