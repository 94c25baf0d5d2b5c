"""The page ``docs/errors.md`` lists every error class and HTTP error code, with the correct code and status."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast import errors, testing
from holdfast.errors import EventInvalidError, HoldfastError, ParamsInvalidError
from holdfast.http import responses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = {
    row[0]: row for row in re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d*) ?\| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)
}
CLASSES = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, HoldfastError) and one is not HoldfastError
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_the_page_lists_the_error_with_its_code(error: type[HoldfastError]) -> None:
    _, code, _, when, _ = ROWS[error.__name__]

    assert code == error.code
    assert when


def test_the_page_lists_no_error_that_does_not_exist() -> None:
    assert set(ROWS) == {error.__name__ for error in CLASSES}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_the_status_on_the_page_is_the_status_of_the_http_response(error: type[HoldfastError]) -> None:
    status = ROWS[error.__name__][2]

    if status:
        raised = error.__new__(error, "message")
        if isinstance(raised, ParamsInvalidError | EventInvalidError):
            raised.issues = []
        assert responses.problem_of(raised).status == int(status)


@pytest.mark.parametrize("module", ["http", "dashboard", "cli/protocol.py"])
def test_the_page_lists_every_code_of_the_http_api(module: str) -> None:
    texts = {node.value for node in _nodes(module, ast.Constant) if isinstance(node.value, str)}
    codes = {text for text in texts if re.fullmatch(r"(?!HOLDFAST_)[A-Z]+(_[A-Z]+)+|FORBIDDEN|UNAUTHORIZED", text)}

    assert codes
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()


def test_the_page_lists_every_recorded_name_without_a_class() -> None:
    calls = [call for call in _nodes(".", ast.Call) if isinstance(call.func, ast.Name) and call.func.id == "Failure"]
    names = {str(call.args[0].value) for call in calls if call.args and isinstance(call.args[0], ast.Constant)}

    assert "Terminated" in names
    assert {name for name in names if f"| `{name}` |" not in PAGE} == set()


@pytest.mark.parametrize("name", testing.__all__)
def test_the_page_lists_the_errors_of_the_testing_package(name: str) -> None:
    one = getattr(testing, name)

    if isinstance(one, type) and issubclass(one, Exception):
        assert f"| `{name}` |" in PAGE


T = TypeVar("T", bound=ast.AST)


def _nodes(path: str, kind: type[T]) -> Iterator[T]:
    """The nodes of this kind in a module, or in all modules of a folder, of the package."""
    found = ROOT / "src" / "holdfast" / path
    for file in found.rglob("*.py") if found.is_dir() else [found]:
        yield from (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kind))
