"""Applies hostile settings in each Python process that a test starts while HOLDFAST_HOSTILE is set.

The settings are applied when the program imports ``holdfast``; nothing is imported before that.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _AfterHoldfast(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "holdfast":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then(module: ModuleType) -> None:
                execute(module)
                _be_hostile()

            spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec


def _be_hostile() -> None:
    sys.path.append(str(Path(__file__).parents[2]))
    from hostile import child_processes

    sys.path.pop()
    child_processes.begin()


sys.meta_path.insert(0, _AfterHoldfast())
