"""Maximum sizes of the source, and the form of its docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
MAX_LINES = 450
MAX_METHODS = 25
MAX_FUNCTION_LINES = 60
MAX_SQL_PARAMETERS = 25
STORES = {"Store", "SqliteStore", "PostgresStore", "PayloadStore"}
"""The store protocol and its implementations have a method for each intent."""

MODULES = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
RIDDLE = re.compile(r"(Of|Who|Whom|Whose|What|When|Where|Why|How|Whether that|By|So many|Nobody|Somebody|That which)\b")
SQL_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION\s+(\S+?)\s*\((.*?)\)\s*(?:RETURNS|LANGUAGE|AS)\b", re.DOTALL)


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for module, text in MODULES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, kinds):
                yield f"{module}:{getattr(node, 'lineno', 1)}", node


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_module_is_longer_than_450_lines() -> None:
    assert {module: text.count("\n") for module, text in MODULES.items() if text.count("\n") > MAX_LINES} == {}


def test_no_class_but_a_store_has_more_than_25_methods() -> None:
    large = {}
    for place, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        methods = sum(isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) for member in node.body)
        if methods > MAX_METHODS and node.name not in STORES:
            large[f"{place} {node.name}"] = methods
    assert large == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = {}
    for place, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            long[f"{place} {node.name}"] = lines
    assert long == {}


def test_no_docstring_begins_with_a_riddle() -> None:
    """The texts after attributes are docstrings, too."""
    found = []
    for place, node in nodes(ast.Expr):
        text = ast.literal_eval(node.value) if isinstance(node, ast.Expr) and is_text(node.value) else ""
        if RIDDLE.match(text.strip()):
            found.append(f"{place}: {text.strip().splitlines()[0]}")
    assert found == []


def test_no_function_of_the_database_has_more_than_25_parameters_of_its_own() -> None:
    """Parameters that are made from the columns of rows are written as one placeholder."""
    large = {}
    for path in sorted(SOURCE.rglob("functions/*.sql")):
        for name, parameters in SQL_FUNCTION.findall(path.read_text("utf-8")):
            count = parameters.count(",") + bool(parameters.strip())
            if count > MAX_SQL_PARAMETERS:
                large[f"{path.name} {name}"] = count
    assert large == {}
