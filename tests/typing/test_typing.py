"""The type checkers reject every marked line of ``rejected.py``. `make check` tests that they accept ``api.py``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_REJECTED = Path(__file__).with_name("rejected.py")
_MARK = "# rejected"


def marked_lines() -> set[int]:
    lines = _REJECTED.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(_MARK)}


def output_of(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command, str(_REJECTED)], cwd=_ROOT, capture_output=True, text=True)
    return done.stdout


def mypy_errors() -> set[int]:
    return {int(line) for line in re.findall(r"rejected\.py:(\d+): error:", output_of("mypy"))}


def pyright_errors() -> set[int]:
    report = json.loads(output_of("basedpyright", "--outputjson"))
    errors = [found for found in report["generalDiagnostics"] if found["severity"] == "error"]
    return {error["range"]["start"]["line"] + 1 for error in errors}


@pytest.mark.parametrize("errors", [mypy_errors, pyright_errors])
def test_the_marked_lines_and_no_others_are_errors(errors) -> None:
    assert sorted(errors()) == sorted(marked_lines())
