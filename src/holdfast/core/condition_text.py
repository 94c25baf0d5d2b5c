"""Conditions on search attributes as text, in queries and commands: ``>=100``, ``"42"``, ``acme``.

A number, a boolean or text in double quotes is read as JSON, any other value is text. ``attributes`` checks and
compares the conditions.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_OPERATORS = ("<=", ">=", "<", ">")


def is_number(text: str) -> bool:
    """True if a text is a decimal number, such as ``-1.5e3``."""
    return _NUMBER.fullmatch(text) is not None


def parse_condition(text: str) -> Any:
    """Parse a condition: a value that the attribute equals, or an operator with a value.

    >>> parse_condition(">=100"), parse_condition('"42"'), parse_condition("acme")
    (('>=', 100), '42', 'acme')
    """
    for operator in _OPERATORS:
        if text.startswith(operator):
            return operator, _value(text[len(operator) :])
    return _value(text)


def _value(text: str) -> Any:
    if text.startswith('"') or is_number(text) or text in ("true", "false"):
        with suppress(ValueError):
            return json.loads(text, parse_int=_integer)
    return text


def _integer(text: str) -> int | float:
    """Read an integer. Beyond 2**53 the result is a float, so that it equals the same number written as ``1e17``."""
    number = float(text)
    return int(number) if abs(number) <= 2**53 else number
