"""Builds a wheel whose hot modules are compiled with mypyc, if the environment variable HOLDFAST_COMPILE is 1.

The Python files stay in the wheel and remain the reference: a compiled module is loaded instead of the file of the same
name. Without the variable, and for an editable installation, this hook does nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# mypyc writes its files relative to the working directory, so it runs on a copy of the sources. The types of libraries
# that are not installed in the build environment are unknown there, and `mypy --strict` checks the sources elsewhere.
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

mypy = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file="]
setup(name="holdfast", packages=[], ext_modules=mypycify([*mypy, *sys.argv[5:]], opt_level="3", group_name="holdfast"),
      script_args=["build_ext", "--build-lib", sys.argv[2], "--build-temp", sys.argv[4]])
"""


TESTED = {(3, 11)}
"""Versions of Python on which the whole suite passes with compiled modules. On 3.13 a test with anyio hangs."""


class CompiledModules(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    _work: Path | None = None
    """The folder of the build; None: nothing is compiled."""

    def _compiles(self) -> bool:
        return os.environ.get("HOLDFAST_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        return ["mypy[mypyc]>=2.4", "setuptools>=80"] if self._compiles() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._compiles():
            return
        if sys.version_info[:2] not in TESTED:
            raise RuntimeError(
                f"the compiled build is tested on Python 3.11 only, and this is {sys.version.split()[0]}; "
                "install without HOLDFAST_COMPILE"
            )
        work = Path(mkdtemp(prefix="holdfast-compiled-"))
        self._work = work
        shutil.copytree(Path(self.root) / "src", work / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        (work / "setup.py").write_text(_SETUP)
        packages: dict[str, list[str]] = self.config["modules"]
        modules = [f"holdfast/{package}/{name}.py" for package, names in packages.items() for name in names]
        options = ["--build-lib", str(work / "lib"), "--build-temp", str(work / "temp")]
        made = subprocess.run(  # noqa: S603
            [sys.executable, str(work / "setup.py"), *options, *modules],
            cwd=work / "src",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"mypyc could not compile the modules:\n{made.stdout}\n{made.stderr}")
        for library in (work / "lib").rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(work / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
