"""The documentation is correct: every Python block runs, every link has a target.

The blocks of a page run in their order in one module, with ``await`` at the top level as in ``python -m asyncio``.
A block that calls ``asyncio.run`` runs as a program in a process.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]+))?\)")
_FENCE = re.compile(r"^```(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    code: str

    @property
    def is_program(self) -> bool:
        return "asyncio.run(" in self.code


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(page, text.count("\n", 0, found.start(1)), found[1]) for found in _BLOCK.finditer(text)]


def name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_python_blocks_of_a_page_run_without_errors(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    asyncio.run(run_all([block for block in blocks(page) if not block.is_program], module))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_programs_of_a_page_run_without_errors(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in blocks(page) if block.is_program):
        program = tmp_path / f"program{number}.py"
        program.write_text(block.code)
        done = subprocess.run(
            [sys.executable, "-W", "error", program.name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", WITH_PROSE, ids=name)
def test_the_links_of_a_page_have_targets(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert page.parent.name != "docs" or not target.startswith("../"), f"{target} is not a page of the site"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_site_renders_every_fenced_block_of_a_page(page: Path) -> None:
    """MkDocs takes a fence with other options for text, and the block swallows the headings that follow it."""
    fences = _FENCE.findall(page.read_text())

    assert len(fences) % 2 == 0
    assert [opening for opening in fences[::2] if not re.fullmatch(r'\w*( title="[^"]+")?', opening)] == []
    assert set(fences[1::2]) <= {""}


def test_the_first_example_of_the_readme_is_a_short_program() -> None:
    first = blocks(ROOT / "README.md")[0]

    assert first.is_program
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 20


async def run_all(page_blocks: list[Block], module: types.ModuleType) -> None:
    for block in page_blocks:
        source = "\n" * block.line + block.code  # so that a traceback has the line number of the page
        code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, vars(module))
        if inspect.iscoroutine(result):
            await result


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
