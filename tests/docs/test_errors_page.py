"""The page ``docs/errors.md`` lists every error class and HTTP error code, with the correct code and status."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast import errors
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


@pytest.mark.parametrize("module", ["http/responses.py", "cli/protocol.py"])
def test_the_page_lists_every_code_of_the_http_api(module: str) -> None:
    tree = ast.parse((ROOT / "src" / "holdfast" / module).read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    codes = {text for text in texts if re.fullmatch(r"[A-Z]+(_[A-Z]+)+|FORBIDDEN|UNAUTHORIZED", text)}

    assert codes
    assert {code for code in codes if f"| `{code}` |" not in PAGE} == set()
