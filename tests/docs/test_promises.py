"""The page ``docs/promises.md`` lists every promise with the tests that check it, on both stores."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import promises

TEXT = promises.PAGE.read_text()


def test_the_lists_of_tests_on_the_page_are_up_to_date() -> None:
    assert promises.updated(TEXT) == TEXT, "run: python -m tests.promises"


def test_the_page_has_a_section_and_a_list_for_every_promise_and_no_other() -> None:
    assert tuple(re.findall(r"^## (\S+)$", TEXT, re.MULTILINE)) == promises.PROMISES
    assert tuple(promises.listed_promises(TEXT)) == promises.PROMISES


def test_the_table_at_the_top_of_the_page_links_to_every_promise() -> None:
    assert tuple(re.findall(r"^\| \[\S+\]\(#(\S+)\) \|", TEXT, re.MULTILINE)) == promises.PROMISES


@pytest.mark.parametrize("promise", promises.PROMISES)
def test_a_promise_has_tests_on_both_stores(promise: str) -> None:
    assert promises.missing_stores(promise, promises.marked_tests()) == set()


def test_a_reason_for_one_store_belongs_to_a_promise_without_a_test_on_that_store() -> None:
    tests = promises.marked_tests()
    for promise, store in promises.ONE_STORE:
        assert promise in promises.PROMISES
        assert not any(test.promise == promise and store in test.stores for test in tests)


def test_a_mark_of_an_unknown_promise_is_an_error_at_collection(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(promises.TESTS)!r})\nimport promises\n\n"
        "def pytest_configure(config):\n    config.addinivalue_line('markers', 'promise(*names)')\n\n"
        "def pytest_collection_modifyitems(items):\n    promises.check_names(items)\n"
    )
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n@pytest.mark.promise('immortality')\ndef test_something(): ...\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_something: no such promise: immortality" in done.stdout + done.stderr
