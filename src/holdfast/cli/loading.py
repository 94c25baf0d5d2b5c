"""Finds the user's app: imports ``MODULE`` of ``MODULE:APP`` and takes ``APP`` from it."""

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
    """The app that ``target`` names, with ``directory`` first on the path, as if Python had been started there."""
    name, attribute = split_target(target)
    if not directory.is_dir():
        raise WrongUsageError(f"--app-dir {directory}: there is no such directory")
    place = str(directory.resolve())
    if sys.path[:1] != [place]:
        sys.path.insert(0, place)
    return _take(_import(name, place), name, attribute)


def split_target(target: str) -> tuple[str, str]:
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for text in (module, attribute) for part in text.split(".")):
        raise WrongUsageError(f"{target!r} does not name an app; write MODULE:APP as for an import, such as shop:app")
    return module, attribute


def _import(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise WrongUsageError(
                f"there is no module {error.name!r} in {place} and none is installed; see --app-dir"
            ) from None
        raise _broken(name, error) from None
    except Exception as error:
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> CannotLoadError:
    """Show the user's own frames: the fault is in that code."""
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


def _take(module: ModuleType, name: str, attribute: str) -> Holdfast:
    try:
        found: Any = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise WrongUsageError(f"the module {name!r} has no {attribute!r}; write MODULE:APP, such as shop:app") from None
    if not isinstance(found, Holdfast):
        raise WrongUsageError(f"{name}:{attribute} is not a Holdfast app but of type {type(found).__name__!r}")
    return found
