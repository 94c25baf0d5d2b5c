"""The modules that a compiled build compiles keep the rules of mypyc that type checkers do not know.

``make test-compiled`` runs the whole suite on the compiled build; these tests need no compiler.
"""

from __future__ import annotations

import ast
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import tracebacks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "holdfast"
HOOK = ROOT / "hatch_build.py"


def compiled_modules() -> dict[str, ast.Module]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        hook = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    paths = [PACKAGE / package / f"{name}.py" for package, names in hook["modules"].items() for name in names]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


COMPILED = compiled_modules()


def classes(module: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))


def base_names(cls: ast.ClassDef) -> set[str]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in cls.bases]
    return {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in bases}


def is_dataclass(cls: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list)


def imported_for_types(module: ast.Module) -> set[str]:
    """Names that are imported only below ``if TYPE_CHECKING``."""
    blocks = [node for node in module.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [one for block in blocks for one in block.body if isinstance(one, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for one in imports for alias in one.names}


def test_no_interpreted_class_inherits_from_a_compiled_class() -> None:
    compiled = {cls.name for module in COMPILED.values() for cls in classes(module)}
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").glob("*.py")]
    interpreted = [path for path in sources if str(path.relative_to(ROOT)) not in COMPILED]

    heirs = [
        f"{path.relative_to(ROOT)}: {cls.name}"
        for path in interpreted
        for cls in classes(ast.parse(path.read_text()))
        if base_names(cls) & compiled
    ]

    assert heirs == []


@pytest.mark.parametrize("path", COMPILED)
def test_the_types_of_a_compiled_dataclass_are_imported_at_run_time(path: str) -> None:
    """mypyc reads them when it makes the class: with an import for type checkers alone, loading the module crashes."""
    missing = imported_for_types(COMPILED[path])

    unknown = {
        name.id
        for cls in classes(COMPILED[path])
        if is_dataclass(cls)
        for field in cls.body
        if isinstance(field, ast.AnnAssign)
        for name in ast.walk(field.annotation)
        if isinstance(name, ast.Name) and name.id in missing
    }

    assert unknown == set()


@pytest.mark.parametrize("path", COMPILED)
def test_a_compiled_module_does_not_read_its_own_frame(path: str) -> None:
    calls = [ast.unparse(node.func) for node in ast.walk(COMPILED[path]) if isinstance(node, ast.Call)]

    assert not {"sys._getframe", "inspect.currentframe"} & {*calls}


def made_hook() -> Any:
    """The build hook with the configuration of the project."""
    hook = runpy.run_path(str(HOOK))["CompiledModules"]
    return hook(str(ROOT), {"modules": {}}, None, None, "", "wheel")


@pytest.mark.parametrize(("compiles", "version"), [("0", "standard"), ("1", "editable")])
def test_an_ordinary_and_an_editable_build_do_not_compile(
    monkeypatch: pytest.MonkeyPatch, compiles: str, version: str
) -> None:
    monkeypatch.setenv("HOLDFAST_COMPILE", compiles)
    hook, data = made_hook(), dict[str, Any]()

    hook.initialize(version, data)
    hook.finalize(version, data, "")

    assert data == {}


def test_a_compiled_build_is_refused_on_an_untested_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_COMPILE", "1")
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))

    with pytest.raises(RuntimeError, match=r"tested on Python 3\.11 only.*install without HOLDFAST_COMPILE"):
        made_hook().initialize("standard", {})


def test_a_frame_of_a_compiled_module_belongs_to_the_engine() -> None:
    """mypyc names the files of its frames relative to the folder of the build."""
    assert tracebacks.package_of("holdfast/workflow/waits.py") == tracebacks.ENGINE
    assert tracebacks.package_of("holdfast_shop/orders.py") is None
