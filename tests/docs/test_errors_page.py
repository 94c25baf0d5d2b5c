"""The page ``docs/errors.md`` lists every error class and every code of the HTTP API, with its true code and status."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import EventInvalidError, HoldfastError, ParamsInvalidError
from holdfast.http import answers

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
def test_a_status_on_the_page_is_the_one_that_http_answers(error: type[HoldfastError]) -> None:
    said = ROWS[error.__name__][2]

    if said:
        raised = error.__new__(error, "message")
        if isinstance(raised, ParamsInvalidError | EventInvalidError):
            raised.issues = []
        assert answers.problem_of(raised).status == int(said)


@pytest.mark.parametrize("module", ["http/answers.py", "cli/protocol.py"])
def test_the_page_lists_every_code_that_only_the_http_api_has(module: str) -> None:
    tree = ast.parse((ROOT / "src" / "holdfast" / module).read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    codes = {text for text in texts if re.fullmatch(r"[A-Z]+(_[A-Z]+)+|FORBIDDEN|UNAUTHORIZED", text)}

    assert codes
    assert {code for code in codes if f"| `{code}` |" not in PAGE} == set()
