"""Values in error messages: short, on one line, and never the cause of another error.

Owns only the shortening. What may be shown at all is decided by whoever writes the message.
"""

from __future__ import annotations

from typing import Any


def shown(value: Any, width: int = 80) -> str:
    """``repr(value)``, cut to ``width`` characters; a value whose ``repr`` fails shows as its type."""
    if isinstance(value, str | bytes | bytearray):
        value = value[: width + 1]
    try:
        text = repr(value)
    except Exception:  # a user's __repr__, or an int too long to print
        return f"<{type_name(value)}>"
    return text if len(text) <= width else text[: width - 1] + "…"


def type_name(value: object) -> str:
    """The class of ``value`` as one would write it: ``set``, ``decimal.Decimal``, ``shop.Order``."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
