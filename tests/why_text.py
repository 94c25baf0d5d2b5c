"""``why`` without the positions in the code, which change with every edit of a test."""

from __future__ import annotations

import re

_POSITION = re.compile(r" at [\w./-]+\.py:\d+")


def without_positions(why: str) -> str:
    return _POSITION.sub("", why)
