"""Text from outside, made safe for a terminal: what could move the cursor, hide or reorder text shows as an escape."""

from __future__ import annotations

import unicodedata

_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # parts of emoji and of several scripts


def safe(text: str, keep: str = "") -> str:
    r"""``text`` with control characters, also those that reorder text, written as ``\x1b`` or ``\u202e``.

    >>> safe("\x1b[31mred")
    '\\x1b[31mred'
    """
    return "".join(sign if sign in keep or _harmless(sign) else _escaped(sign) for sign in text)


def one_line(text: str) -> str:
    return safe(" ".join(text.split()))


def _harmless(sign: str) -> bool:
    return sign.isprintable() or sign in _JOINERS or unicodedata.category(sign) not in _INVISIBLE


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode()
