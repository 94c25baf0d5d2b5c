"""Escaping of untrusted text for a terminal: characters that move the cursor, or hide or reorder text."""

from __future__ import annotations

import unicodedata

_CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # used in emoji and in several scripts


def escape_controls(text: str, keep: str = "") -> str:
    r"""Replace control characters, also those that reorder text, by escapes such as ``\x1b`` or ``\u202e``.

    >>> escape_controls("\x1b[31mred")
    '\\x1b[31mred'
    """
    return "".join(char if char in keep or _is_harmless(char) else _escape(char) for char in text)


def one_line(text: str) -> str:
    return escape_controls(" ".join(text.split()))


def count_text(number: int, noun: str) -> str:
    """A number with its noun: ``1 worker``, ``2 workers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _is_harmless(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) not in _CONTROL_CATEGORIES


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
