"""Short representations of values for error messages.

Formatting a value never raises. The code that writes a message decides whether the value may be shown.
"""

from __future__ import annotations

from typing import Any


def shown(value: Any, width: int = 80) -> str:
    """``repr(value)``, cut to ``width`` characters. A value whose ``repr`` fails is shown as its type."""
    if isinstance(value, str | bytes | bytearray):
        value = value[: width + 1]
    try:
        text = repr(value)
    except Exception:  # a user's __repr__, or an int too long to print
        return f"<{type_name(value)}>"
    return text if len(text) <= width else text[: width - 1] + "…"


def type_name(value: object) -> str:
    """The qualified class name of ``value``: ``set``, ``decimal.Decimal``, ``shop.Order``."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
