"""Frames of suspended code as records: file, line, function, source line, and local variables as redacted text."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.core.records import CodePosition
from holdfast.core.redaction import Redaction
from holdfast.core.tracebacks import ENGINE, package_of
from holdfast.core.views import FrameInfo

_MAX_LOCALS = 50


def user_frames(frames: Iterable[FrameType], workflow_file: str) -> list[FrameType]:
    """The frames of user code: files that belong to no package, and those of the package of the workflow's file.

    A workflow of the engine's own package, as in its demo, has only the frames of its file.
    """
    own = package_of(workflow_file)
    if own == ENGINE:
        return [frame for frame in frames if frame.f_code.co_filename == workflow_file]
    return [frame for frame in frames if package_of(frame.f_code.co_filename) in (None, own)]


def frame_info(frame: FrameType, redaction: Redaction) -> FrameInfo:
    code = frame.f_code
    source = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return FrameInfo(code.co_filename, frame.f_lineno, code.co_name, source, locals_text(frame.f_locals, redaction))


def function_info(function: Any, arguments: Mapping[str, Any], redaction: Redaction) -> FrameInfo:
    """A function that is called outside the workflow code: its first line, and its arguments as local variables."""
    function = inspect.unwrap(getattr(function, "func", function))  # ``func``: of functools.partial
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if code is None:
        return FrameInfo("<unknown>", 0, name, "", locals_text(arguments, redaction))
    line = _line_of_def(code.co_filename, code.co_firstlineno)
    source = linecache.getline(code.co_filename, line, getattr(function, "__globals__", None)).strip()
    return FrameInfo(code.co_filename, line, name, source, locals_text(arguments, redaction))


def position_of_function(function: Any) -> CodePosition | None:
    """The line of ``def`` of a function; None if its source is not known."""
    info = function_info(function, {}, Redaction())
    return None if info.line == 0 else CodePosition(short_path(info.file), info.line)


def _line_of_def(file: str, first: int) -> int:
    """The line of ``def`` of a function whose code begins with the line ``first``, that of its first decorator."""
    for line in range(first, first + 50):
        text = linecache.getline(file, line).strip()
        if text.startswith(("def ", "async def ", "class ")) or "lambda" in text:
            return line
    return first


def locals_text(variables: Mapping[str, Any], redaction: Redaction) -> dict[str, str]:
    names = [name for name in variables if name.isidentifier() and not name.startswith("__")]
    return {name: redaction.local(name, variables[name]) for name in names[:_MAX_LOCALS]}


def position_of(frames: Sequence[FrameType]) -> CodePosition | None:
    """The innermost of these frames as a position; None if there are no frames."""
    if not frames:
        return None
    frame = frames[-1]
    return CodePosition(short_path(frame.f_code.co_filename), frame.f_lineno)


def short_path(file: str) -> str:
    """The path of a file relative to the entry of ``sys.path`` that contains it, else the name of the file."""
    path = Path(file)
    roots = [Path(entry or ".").resolve() for entry in sys.path]
    inside = [path.relative_to(root) for root in roots if path.is_relative_to(root)]
    return min(inside, key=lambda short: len(short.parts)).as_posix() if inside else path.name
