"""The engine's promises, and the tests that check them: ``@pytest.mark.promise("fencing")``.

``python -m tests.promises`` writes the lists of tests in ``docs/promises.md``. The marks are read from the source, so
that the page can be checked without importing every test module.

A mark may name several promises. A test counts for the stores that it runs on; ``store=None`` in a mark says that no
store takes part in the test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "promises.md"

PROMISES = (
    "committed-results-never-change",
    "fencing",
    "durability",
    "no-lost-wakeup",
    "liveness",
    "finality",
    "at-least-once-steps",
    "messages-once-in-order",
    "outbox",
    "bounded-resources",
    "isolation-of-runs",
    "clear-errors",
    "exact-replay",
    "no-secrets",
)
"""The promises, in the order of the page."""

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
STORES = (SQLITE, POSTGRES)
ONE_STORE: dict[tuple[str, str], str] = {}
"""Reasons why a promise needs no test on a store, by promise and store. The page shows them."""

_FOLDERS = {"chaos": POSTGRES, "soak": POSTGRES, "postgres": POSTGRES, "sqlite": SQLITE}
"""The store of every test below a folder of this name."""
_STORE_FIXTURES = {"database", "store_kind", "world"}
"""Fixtures that run a test on both stores."""
_FIXTURES = ("pytest.fixture", "pytest_asyncio.fixture")
_LIST = re.compile(r"(<!-- tests:(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_names(items: Iterable[pytest.Item]) -> None:
    """Refuse marks of promises that do not exist."""
    for item in items:
        for mark in item.iter_markers("promise"):
            unknown = set(mark.args) - set(PROMISES)
            if unknown or not mark.args:
                raise pytest.UsageError(
                    f"{item.nodeid}: no such promise: {', '.join(map(str, unknown)) or 'none named'}"
                )


@dataclass(frozen=True)
class MarkedTest:
    promise: str
    file: str
    name: str
    stores: tuple[str, ...]
    of_module: bool
    """True if the mark is that of the module (``pytestmark``)."""


@dataclass(frozen=True)
class _Mark:
    promises: list[str]
    without_store: bool


@dataclass(frozen=True)
class _Source:
    """The parts of a test file that determine its marks and the stores of its tests."""

    path: Path
    functions: dict[str, _Function] = field(default_factory=dict)
    fixtures: dict[str, _Function] = field(default_factory=dict)
    marks: list[ast.expr] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    @staticmethod
    @cache
    def read(path: Path) -> _Source:
        source = _Source(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, _Function):
                is_fixture = any(ast.unparse(one).startswith(_FIXTURES) for one in node.decorator_list)
                (source.fixtures if is_fixture else source.functions)[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                source.names.add(node.targets[0].id)
                if node.targets[0].id == "pytestmark":
                    listed = isinstance(node.value, ast.List | ast.Tuple)
                    source.marks.extend(node.value.elts if listed else [node.value])  # type: ignore[attr-defined]
        return source


@cache
def marked_tests() -> Sequence[MarkedTest]:
    """Every test with a mark, once per promise."""
    return sorted(_marked_tests(), key=lambda one: (PROMISES.index(one.promise), one.file))


def _marked_tests() -> Iterator[MarkedTest]:
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.promise(" not in path.read_text():
            continue
        source = _Source.read(path)
        for name, function in source.functions.items():
            if not name.startswith("test_"):
                continue
            for decorators, of_module in ((source.marks, True), (function.decorator_list, False)):
                for mark in _promise_marks(decorators):
                    stores = () if mark.without_store else _stores_of(function, source)
                    for promise in mark.promises:
                        file = path.relative_to(TESTS.parent).as_posix()
                        yield MarkedTest(promise, file, name, stores, of_module)


def _promise_marks(decorators: list[ast.expr]) -> Iterator[_Mark]:
    for one in decorators:
        if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.mark.promise":
            yield _Mark([ast.literal_eval(name) for name in one.args], bool(one.keywords))


def _stores_of(test: _Function, source: _Source) -> tuple[str, ...]:
    decorators = [ast.unparse(one) for one in (*source.marks, *test.decorator_list)]
    for part in source.path.relative_to(TESTS).parts:
        if part in _FOLDERS:
            return (_FOLDERS[part],)
    if any(one.startswith("pytest.mark.parametrize('database'") and "'postgres'" in one for one in decorators):
        return STORES
    if "pytest.mark.above_the_store" in decorators:
        return (SQLITE,)
    return STORES if _uses_both_stores(test, source) else (SQLITE,)


def _uses_both_stores(test: _Function, source: _Source) -> bool:
    """True if the test depends on a fixture of its folder, or of ``apps.py``, that runs it on both stores."""
    folders = [folder for folder in source.path.parents if folder.is_relative_to(TESTS)]
    conftests = [_Source.read(file) for folder in folders if (file := folder / "conftest.py").exists()]
    shared = [*conftests, _Source.read(TESTS / "apps.py")]
    pending, seen = [argument.arg for argument in test.args.args], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for place in (source, *shared):
            if (fixture := place.fixtures.get(name)) is not None:
                if place is not source and name in _STORE_FIXTURES:
                    return "EVERY_STORE" not in place.path.read_text() or "EVERY_STORE" in source.names
                pending += [argument.arg for argument in fixture.args.args]
                break
    return False


def missing_stores(promise: str, tests: Iterable[MarkedTest]) -> set[str]:
    """The stores on which the promise has no test, although it needs one."""
    covered = {store for test in tests if test.promise == promise for store in test.stores}
    return {store for store in STORES if store not in covered and (promise, store) not in ONE_STORE}


def updated(page: str) -> str:
    """The page with the lists of tests generated from the marks."""
    tests = marked_tests()
    return _LIST.sub(lambda found: f"{found[1]}{_list_of(found[2], tests)}{found[3]}", page)


def listed_promises(page: str) -> list[str]:
    return [found[2] for found in _LIST.finditer(page)]


def _list_of(promise: str, tests: Sequence[MarkedTest]) -> str:
    own = [test for test in tests if test.promise == promise]
    lines = ["\n| test | in | stores |\n|---|---|---|\n"]
    lines += [_row(_statement(test.name), test.file, test.stores) for test in own if not test.of_module]
    for file in dict.fromkeys(test.file for test in own if test.of_module):
        in_file = [test for test in own if test.of_module and test.file == file]
        stores = tuple(store for store in STORES if any(store in test.stores for test in in_file))
        lines.append(_row(f"all {len(in_file)} tests of the file", file, stores))
    reasons = [reason for (name, _), reason in ONE_STORE.items() if name == promise]
    return "".join((*lines, "\n", *(f"{reason}\n\n" for reason in reasons)))


def _row(test: str, file: str, stores: tuple[str, ...]) -> str:
    return f"| {test} | `{file}` | {', '.join(stores) or 'none'} |\n"


def _statement(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def main() -> None:
    PAGE.write_text(updated(PAGE.read_text()))


if __name__ == "__main__":
    main()
