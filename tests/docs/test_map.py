"""The pages that describe the code name all of its parts: packages, layers and promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import promises

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
MAP = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things live")[2].partition("\n## ")[0]
LAYERS_SECTION = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Layers\n")[2].partition("\n## ")[0]


def packages(folder: Path) -> list[str]:
    return sorted(f"{path.name}/" for path in folder.iterdir() if path.is_dir() and [*path.glob("*.py")])


def modules(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.py"))


def layers_of_the_contract() -> list[str]:
    """The layers in pyproject.toml, written as on the page: ``a │ b`` for siblings, ``a, b`` for parts of one layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [contract for contract in contracts if contract["type"] == "layers"]
    plain = [re.sub(r"\(holdfast\.(\S+)\)", r"\1", layer) for layer in contract["layers"]]
    return [layer.replace(" | ", " │ ").replace(" : ", ", ") for layer in plain]


@pytest.mark.parametrize("name", packages(SOURCE) + modules(SOURCE))
def test_the_map_names_every_package_and_module(name: str) -> None:
    if name == "store/":
        missing = {f"store/{part}" for part in packages(SOURCE / "store") + modules(SOURCE / "store")}
        assert {part for part in missing if f"`{part}`" not in MAP} == {"store/__init__.py"}
    else:
        assert f"`{name}`" in MAP


def test_the_map_names_every_folder_of_tests_without_a_package() -> None:
    folders = {*packages(ROOT / "tests")} - {*packages(SOURCE)}
    assert {folder for folder in folders if f"`tests/{folder}`" not in MAP} == set()


def test_the_map_names_only_files_that_exist() -> None:
    names = {name for name in re.findall(r"`([\w/.]+(?:/|\.py))`", MAP) if name != "sql/*.sql"}
    missing = {name for name in names if not ((SOURCE / name).exists() or (ROOT / name).exists())}
    assert missing - {"migrations/"} == set()


def test_the_architecture_page_shows_the_layers_that_are_checked() -> None:
    drawing = LAYERS_SECTION.split("```")[1]
    shown = [re.split(r"\s{2,}", line.strip())[0] for line in drawing.strip().splitlines()]

    assert shown == layers_of_the_contract()
    assert f"the {len(shown)} layers" in LAYERS_SECTION


def test_the_page_of_promises_states_their_number() -> None:
    assert f"the {len(promises.PROMISES)} promises of Holdfast" in promises.PAGE.read_text()
