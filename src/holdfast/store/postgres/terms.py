"""Rows of search terms and conditions: texts and numbers have separate columns."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.tx import Row
from holdfast.store.protocol import Condition, Term

Value = str | int | float


def term_rows(terms: Sequence[Term]) -> list[Row]:
    return [(term.key, *_text_or_number(term.value)) for term in terms]


def condition_rows(conditions: Sequence[Condition]) -> list[Row]:
    return [(key, op, *_text_or_number(value)) for key, op, value in conditions]


def _text_or_number(value: Value) -> tuple[str | None, int | float | None]:
    return (value, None) if isinstance(value, str) else (None, value)
