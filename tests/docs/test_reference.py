"""The reference lists every public name once: classes and functions by group, errors on a page of their own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import holdfast
import holdfast.testing

DOCS = Path(__file__).parents[2] / "docs"
LISTED = Counter(
    name
    for page in (DOCS / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
)
UNIONS = {"holdfast.Outcome"}


def is_error(name: str) -> bool:
    value = getattr(holdfast, name)
    return isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == "holdfast.errors"


def test_the_reference_lists_every_public_name_once() -> None:
    names = {f"holdfast.{name}" for name in holdfast.__all__ if not is_error(name) and not name.startswith("__")}
    names |= {f"holdfast.testing.{name}" for name in holdfast.testing.__all__}

    assert Counter(names - UNIONS) == LISTED


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if is_error(name)])
def test_the_page_of_errors_has_every_error(name: str) -> None:
    assert f"`{name}`" in (DOCS / "errors.md").read_text()


def test_the_navigation_of_the_site_has_every_page() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text().partition("\nnav:\n")[2]

    assert set(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)) == {
        str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")
    }
