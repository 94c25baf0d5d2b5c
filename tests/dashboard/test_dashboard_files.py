"""The files of the dashboard: sizes, vendored code, and what its content security policy forbids."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

from holdfast.dashboard.assets import DIRECTORY, Assets

MODULE = re.compile(r"""(?:from|import)\s*["'](\.{1,2}/[^"']+)["']""")
FIRST_VIEW = ["js/screens/overview.js"]
"""Modules that the first page imports when it is shown."""


def modules_of(entry: str, found: dict[str, str]) -> dict[str, str]:
    """The module and everything that it imports statically, by name."""
    if entry not in found:
        path = DIRECTORY / entry
        found[entry] = path.read_text()
        for name in MODULE.findall(found[entry]):
            modules_of((path.parent / name).resolve().relative_to(DIRECTORY.resolve()).as_posix(), found)
    return found


def served_files() -> list[Path]:
    assets = Assets()
    return [DIRECTORY / name for name in assets.manifest()] + [DIRECTORY / "index.html"]


def test_the_whole_dashboard_is_at_most_400_kilobytes() -> None:
    loaded = [path for path in served_files() if path.suffix != ".txt"]  # no page loads the texts of the licences
    assert sum(path.stat().st_size for path in loaded) <= 400_000


def test_the_first_view_is_at_most_120_kilobytes_compressed() -> None:
    found: dict[str, str] = {}
    for entry in ["js/main.js", *FIRST_VIEW]:
        modules_of(entry, found)
    pages = [DIRECTORY / "index.html", *DIRECTORY.glob("css/*.css"), DIRECTORY / "icon.svg"]
    contents = [text.encode() for text in found.values()] + [path.read_bytes() for path in pages]
    assert sum(len(gzip.compress(content, 9)) for content in contents) <= 120_000


def test_vendored_files_have_the_recorded_checksums() -> None:
    notes = (DIRECTORY / "vendor" / "README.md").read_text()
    recorded = dict(re.findall(r"\| `(\w+\.js)` .*\| `([0-9a-f]{64})` \|", notes))
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (DIRECTORY / "vendor").glob("*.js")}
    assert recorded == present


def test_no_page_or_module_has_inline_scripts_styles_or_markup_from_values() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|\beval\(|new Function|document\.write"
    )
    inline = re.compile(r"\sstyle=[\"']|\son\w+=[\"']|<style|javascript:")
    for path in [*DIRECTORY.glob("js/**/*.js"), DIRECTORY / "index.html"]:
        text = path.read_text()
        assert forbidden.search(text) is None, path
        assert inline.search(text) is None, path


def test_every_import_between_modules_leads_to_a_file() -> None:
    for path in DIRECTORY.glob("js/**/*.js"):
        dynamic = re.findall(r"""import\(["']([^"']+)["']\)""", path.read_text())
        for name in [*MODULE.findall(path.read_text()), *dynamic]:
            assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}"
