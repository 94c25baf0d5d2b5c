"""Loads the user's app: imports ``MODULE`` of ``MODULE:APP`` and returns its attribute ``APP``."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import reduce
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.errors import CannotLoadError, WrongUsageError


def load_app(target: str, directory: Path) -> Holdfast:
    """Load the app that ``target`` names, with ``directory`` first in ``sys.path``."""
    name, attribute = split_target(target)
    if not directory.is_dir():
        raise WrongUsageError(f"--app-dir {directory}: there is no such directory")
    path = str(directory.resolve())
    if sys.path[:1] != [path]:
        sys.path.insert(0, path)
    return _app_of(_import(name, path), name, attribute)


def split_target(target: str) -> tuple[str, str]:
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for text in (module, attribute) for part in text.split(".")):
        raise WrongUsageError(f"{target!r} does not name an app; write MODULE:APP as for an import, such as shop:app")
    return module, attribute


def _import(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise WrongUsageError(
                f"there is no module {error.name!r} in {path} and none is installed; see --app-dir"
            ) from None
        raise _import_failed(name, error) from None
    except Exception as error:
        raise _import_failed(name, error) from None


def _import_failed(name: str, error: Exception) -> CannotLoadError:
    """Print the traceback of the user's code, without the frames of the import system."""
    traceback.print_exception(type(error), error, _skip_import_frames(error.__traceback__))
    return CannotLoadError(f"the module {name!r} cannot be imported: {type(error).__name__} (see above)")


def _skip_import_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in (
        "holdfast",
        "importlib",
        "_frozen_importlib",
        "_frozen_importlib_external",
    ):
        trace = trace.tb_next
    return trace


def _app_of(module: ModuleType, name: str, attribute: str) -> Holdfast:
    try:
        value: Any = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise WrongUsageError(f"the module {name!r} has no {attribute!r}; write MODULE:APP, such as shop:app") from None
    if not isinstance(value, Holdfast):
        raise WrongUsageError(f"{name}:{attribute} is not a Holdfast app but of type {type(value).__name__!r}")
    return value
