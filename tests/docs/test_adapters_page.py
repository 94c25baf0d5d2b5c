"""The page ``docs/adapters.md``: every library of an adapter with its extra, its bound, its example and its version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "adapters.md").read_text().splitlines()
    if line.startswith("| `")
]
ADAPTERS = [row for row in ROWS if len(row) == 6]
NOT_ADAPTERS = {"all", "postgres", "metrics", "otel"}
"""Extras for the database and for observation."""


def bound(extra: str, library: str) -> str:
    [found] = [
        match[1]
        for text in PROJECT["optional-dependencies"][extra]
        if (match := re.match(rf"{re.escape(library)}(?:\[\w+\])?>=([\d.]+)", text))
    ]
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_every_extra_of_an_adapter_has_a_row() -> None:
    assert {row[1] for row in ADAPTERS} == set(PROJECT["optional-dependencies"]) - NOT_ADAPTERS


@pytest.mark.parametrize("row", ADAPTERS, ids=lambda row: row[0])
def test_the_bound_of_the_extra_is_stated_and_not_above_the_tested_version(row: list[str]) -> None:
    library, extra, _, _, oldest, tested = row

    assert oldest == bound(extra, library)
    assert min(map(numbers, tested.split(", "))) >= numbers(oldest)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_example_exists(row: list[str]) -> None:
    example = row[-3] if len(row) == 6 else row[-2]

    assert not example or (ROOT / "examples" / example).is_file()
